//! The order in which a stage of a pipeline computes its micro-batches.

use crate::config::PipelineSchedule;

/// A stage's forward or backward of one micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    Forward(usize),
    Backward(usize),
}

/// The passes of stage `stage` of `stages` over `micros` micro-batches. A pipeline of one stage has no schedule: it goes backward
/// as soon as it can.
pub fn passes(schedule: PipelineSchedule, [stage, stages]: [usize; 2], micros: usize) -> Vec<Pass> {
    // Forward passes before the first backward pass.
    let ahead = match schedule {
        PipelineSchedule::GPipe if stages > 1 => micros,
        PipelineSchedule::Naive => micros.min(1),
        // Narayanan et al. (2021), "Efficient large-scale language model training on GPU clusters", section 2.2.1.
        PipelineSchedule::GPipe | PipelineSchedule::OneFOneB => micros.min(stages - stage),
    };
    let mut list: Vec<Pass> = (0..ahead).map(Pass::Forward).collect();
    for micro in 0..micros {
        list.push(Pass::Backward(micro));
        if ahead + micro < micros {
            list.push(Pass::Forward(ahead + micro));
        }
    }
    list
}

/// The largest number of micro-batches that have gone forward and not yet backward.
pub fn in_flight(passes: &[Pass]) -> usize {
    let mut most = 0;
    passes.iter().fold(0usize, |live, pass| match pass {
        Pass::Forward(_) => {
            most = most.max(live + 1);
            live + 1
        }
        Pass::Backward(_) => live - 1,
    });
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use PipelineSchedule::{GPipe, Naive, OneFOneB};

    #[test]
    fn every_micro_batch_goes_forward_and_then_backward_in_order() {
        for (schedule, stages, micros) in
            [(OneFOneB, 1, 3), (OneFOneB, 4, 8), (OneFOneB, 4, 2), (GPipe, 4, 6), (GPipe, 1, 4), (Naive, 4, 8)]
        {
            for stage in 0..stages {
                let list = passes(schedule, [stage, stages], micros);
                let of = |wanted: fn(&Pass) -> Option<usize>| list.iter().filter_map(wanted).collect::<Vec<_>>();
                let all: Vec<usize> = (0..micros).collect();
                assert_eq!(of(|pass| if let Pass::Forward(micro) = pass { Some(*micro) } else { None }), all);
                assert_eq!(of(|pass| if let Pass::Backward(micro) = pass { Some(*micro) } else { None }), all);
                for micro in 0..micros {
                    let at = |wanted| list.iter().position(|pass| *pass == wanted);
                    assert!(at(Pass::Forward(micro)) < at(Pass::Backward(micro)));
                }
            }
        }
    }

    #[test]
    fn stages_hold_as_many_micro_batches_as_the_schedule_says() {
        let held =
            |schedule, micros| (0..4).map(|stage| in_flight(&passes(schedule, [stage, 4], micros))).collect::<Vec<_>>();
        assert_eq!(held(OneFOneB, 8), [4, 3, 2, 1]);
        assert_eq!(held(OneFOneB, 2), [2, 2, 2, 1]);
        assert_eq!(held(GPipe, 8), [8; 4]);
        assert_eq!(held(Naive, 8), [1; 4]);
        assert_eq!(in_flight(&passes(GPipe, [0, 1], 8)), 1);
    }
}
