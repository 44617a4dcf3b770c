//! Course of the learning rate.

use crate::config::{CourseSteps, Schedule, Train};

/// Learning rate of an update (1 for the first). The course rises linearly to `lr` over the warm-up (`lr * step / warmup`), then
/// follows the schedule, which reaches `lr_min` at the step that is the number of updates, and stays there.
pub fn learning_rate(train: &Train, update: u64) -> f64 {
    let (warmup, last) = (train.lr_warmup_steps as u64, (train.untimed_steps + train.steps) as u64);
    let (step, warmup) = match train.lr_steps {
        CourseSteps::FromOne => (update, warmup),
        CourseSteps::Transformers => (update.saturating_sub(1), warmup),
        CourseSteps::DeepSpeed => (update.saturating_sub(2), warmup.max(2)),
    };
    // DeepSpeed's cosine is a step into its decay where warm-up ends.
    let is_early = train.lr_steps == CourseSteps::DeepSpeed && train.lr_schedule == Schedule::Cosine;
    let decayed = (step + u64::from(is_early)).saturating_sub(warmup);
    if decayed == 0 && warmup > 0 {
        return train.lr * step as f64 / warmup as f64;
    }
    let done = (decayed as f64 / (last.saturating_sub(warmup)).max(1) as f64).min(1.0);
    let left = match train.lr_schedule {
        Schedule::Constant => return train.lr,
        Schedule::Linear => 1.0 - done,
        Schedule::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
    };
    train.lr_min + (train.lr - train.lr_min) * left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Optimizer;

    fn train(lr_schedule: Schedule) -> Train {
        Train {
            seq_len: 1,
            micro_batch: 1,
            accumulation: 1,
            steps: 8,
            untimed_steps: 2,
            seed: 0,
            optimizer: Optimizer::AdamW,
            lr: 1.0,
            betas: [0.9, 0.95],
            eps: 1e-8,
            weight_decay: 0.0,
            clip_norm: 0.0,
            lr_schedule,
            lr_warmup_steps: 2,
            lr_min: 0.1,
            lr_steps: CourseSteps::FromOne,
            delayed_update: 0,
        }
    }

    /// By tests/interop/learning_rates.py: of transformers' Trainer 5.23.0 and DeepSpeed's engine 0.19.8.
    #[test]
    fn every_update_has_the_rate_that_the_other_program_gives_it() {
        let text = include_str!("../../../tests/interop/learning_rates.csv");
        let mut seen = 0;
        for row in text.lines().skip(1) {
            let fields: Vec<&str> = row.split(',').collect();
            let number = |at: usize| fields[at].parse::<f64>().unwrap();
            let word = |at: usize| serde_json::Value::from(fields[at]);
            let train = Train {
                lr_steps: serde_json::from_value(word(3)).unwrap(),
                steps: number(5) as usize,
                untimed_steps: 0,
                lr_warmup_steps: number(6) as usize,
                lr: number(7),
                lr_min: number(8),
                ..train(serde_json::from_value(word(4)).unwrap())
            };
            for (update, rate) in (1..).zip(fields[9].split(' ')) {
                let (got, rate) = (learning_rate(&train, update), rate.parse::<f64>().unwrap());
                assert!((got - rate).abs() <= 1e-12 * train.lr, "{row}: update {update} has {got}");
                seen += 1;
            }
        }
        assert_eq!(seen, 286, "updates");
    }

    #[test]
    fn warms_up_then_follows_the_schedule_to_its_end() {
        for schedule in [Schedule::Constant, Schedule::Linear, Schedule::Cosine] {
            let t = train(schedule);
            assert_eq!((learning_rate(&t, 1), learning_rate(&t, 2)), (0.5, 1.0));
        }
        assert_eq!(learning_rate(&train(Schedule::Constant), 10), 1.0);
        assert!((learning_rate(&train(Schedule::Linear), 6) - 0.55).abs() < 1e-12);
        assert!((learning_rate(&train(Schedule::Cosine), 6) - 0.55).abs() < 1e-12);
        assert!((learning_rate(&train(Schedule::Cosine), 10) - 0.1).abs() < 1e-12);
        for schedule in [Schedule::Linear, Schedule::Cosine] {
            assert_eq!(learning_rate(&train(schedule), 25), learning_rate(&train(schedule), 10));
        }
    }
}
