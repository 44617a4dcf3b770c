//! Course of the learning rate.

use crate::config::{Schedule, Train};

/// Learning rate of step `step` (1 for the first). It rises linearly to `lr` over the warm-up (`lr * step / warmup`), then
/// follows the schedule, which reaches `lr_min` at the last step and stays there.
pub fn learning_rate(train: &Train, step: u64) -> f64 {
    let (warmup, last) = (train.lr_warmup_steps as u64, (train.untimed_steps + train.steps) as u64);
    if step <= warmup {
        return train.lr * step as f64 / warmup as f64;
    }
    let done = ((step - warmup) as f64 / (last.saturating_sub(warmup)).max(1) as f64).min(1.0);
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
            delayed_update: 0,
        }
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
