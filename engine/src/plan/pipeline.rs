//! The order in which a stage of a pipeline computes its micro-batches: one file for each schedule.

mod gpipe;
mod interleaved;
mod naive;
mod one_f_one_b;
mod zero_bubble;

use crate::config::{Degrees, PipelineSchedule};

/// Forward or backward of one micro-batch through one chunk of a stage's layers. Chunk `c` of stage `i` of `p` is virtual
/// stage `c * p + i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    Forward {
        chunk: usize,
        micro: usize,
    },
    Backward {
        chunk: usize,
        micro: usize,
    },
    /// The part of backward that the stage before waits for: the gradient of the input.
    BackwardInput {
        chunk: usize,
        micro: usize,
    },
    /// The rest of backward: the gradients of the weights.
    BackwardWeight {
        chunk: usize,
        micro: usize,
    },
}

impl Pass {
    pub fn chunk(self) -> usize {
        self.parts().0
    }

    pub fn micro(self) -> usize {
        self.parts().1
    }

    fn parts(self) -> (usize, usize) {
        match self {
            Pass::Forward { chunk, micro }
            | Pass::Backward { chunk, micro }
            | Pass::BackwardInput { chunk, micro }
            | Pass::BackwardWeight { chunk, micro } => (chunk, micro),
        }
    }
}

/// A pipeline: its schedule, and the numbers that the order depends on.
#[derive(Clone, Copy, Debug)]
pub struct Pipeline {
    pub schedule: PipelineSchedule,
    pub stages: usize,
    /// Chunks of layers on each stage.
    pub chunks: usize,
    /// Micro-batches of a step.
    pub micros: usize,
}

impl Pipeline {
    pub fn of(degrees: &Degrees, micros: usize) -> Pipeline {
        Pipeline { schedule: degrees.schedule(), stages: degrees.pipeline, chunks: degrees.virtual_stages, micros }
    }

    /// The passes of a stage, in order. A pipeline of one stage has no schedule: it goes backward as soon as it can.
    pub fn passes(&self, stage: usize) -> Vec<Pass> {
        match self.schedule {
            _ if self.stages == 1 => one_f_one_b::passes(self, stage),
            PipelineSchedule::Naive => naive::passes(self),
            PipelineSchedule::GPipe => gpipe::passes(self),
            PipelineSchedule::OneFOneB => one_f_one_b::passes(self, stage),
            PipelineSchedule::Interleaved => interleaved::passes(self, stage),
            PipelineSchedule::ZbH1 => zero_bubble::passes(self, stage),
        }
    }

    /// The passes of a stage of one chunk that goes forward with so many micro-batches, and then backward and forward in turn.
    fn in_turn(&self, ahead: usize) -> Vec<Pass> {
        let forward = |micro| Pass::Forward { chunk: 0, micro };
        let mut list: Vec<Pass> = (0..ahead).map(forward).collect();
        for micro in 0..self.micros {
            list.push(Pass::Backward { chunk: 0, micro });
            list.extend((ahead + micro < self.micros).then(|| forward(ahead + micro)));
        }
        list
    }
}

/// The largest number of micro-batches that a stage has begun and not ended.
pub fn in_flight(passes: &[Pass]) -> usize {
    let micros = passes.iter().map(|pass| pass.micro() + 1).max().unwrap_or(0);
    let (mut begins, mut ends) = (vec![usize::MAX; micros], vec![0; micros]);
    for (place, pass) in passes.iter().enumerate() {
        let micro = pass.micro();
        (begins[micro], ends[micro]) = (begins[micro].min(place), place);
    }
    // Micro-batches begin and end in their order.
    let mut oldest = 0;
    let live = |(micro, begin): (usize, usize)| {
        oldest += ends[oldest..micro].iter().take_while(|end| **end < begin).count();
        micro + 1 - oldest
    };
    begins.into_iter().enumerate().map(live).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use PipelineSchedule::{GPipe, Interleaved, Naive, OneFOneB, ZbH1};

    fn pipeline(schedule: PipelineSchedule, [stages, chunks, micros]: [usize; 3]) -> Pipeline {
        Pipeline { schedule, stages, chunks, micros }
    }

    /// Pipelines of every schedule, also of fewer micro-batches than stages.
    fn pipelines() -> Vec<Pipeline> {
        let mut list = Vec::new();
        for stages in 1..=5 {
            for micros in [1, 2, 3, 4, 5, 8, 13] {
                let single = [Naive, GPipe, OneFOneB, ZbH1];
                list.extend(single.map(|schedule| pipeline(schedule, [stages, 1, micros])));
            }
            if stages > 1 {
                let sizes = (2..=4).flat_map(|chunks| [1, 2, 3].map(|groups| [stages, chunks, groups * stages]));
                list.extend(sizes.map(|sizes| pipeline(Interleaved, sizes)));
            }
        }
        list
    }

    /// The micro-batches of a chunk that go through a kind of pass, in order.
    fn micros(passes: &[Pass], wanted: impl Fn(Pass) -> bool) -> Vec<usize> {
        passes.iter().filter(|pass| wanted(**pass)).map(|pass| pass.micro()).collect()
    }

    #[test]
    fn every_micro_batch_goes_forward_and_then_backward_in_order() {
        for pipeline in pipelines() {
            let all: Vec<usize> = (0..pipeline.micros).collect();
            for stage in 0..pipeline.stages {
                let list = pipeline.passes(stage);
                let place = |wanted: Pass| list.iter().position(|pass| *pass == wanted);
                for chunk in 0..pipeline.chunks {
                    let what = format!("{pipeline:?}, stage {stage}, chunk {chunk}");
                    let of = |wanted: fn(Pass) -> bool| micros(&list, |pass| pass.chunk() == chunk && wanted(pass));
                    let splits = pipeline.schedule == ZbH1 && pipeline.stages > 1;
                    let (whole, split) = if splits { (vec![], all.clone()) } else { (all.clone(), vec![]) };
                    assert_eq!(of(|pass| matches!(pass, Pass::Forward { .. })), all, "{what}");
                    assert_eq!(of(|pass| matches!(pass, Pass::Backward { .. })), whole, "{what}");
                    assert_eq!(of(|pass| matches!(pass, Pass::BackwardInput { .. })), split, "{what}");
                    assert_eq!(of(|pass| matches!(pass, Pass::BackwardWeight { .. })), split, "{what}");
                    for micro in 0..pipeline.micros {
                        let forward = place(Pass::Forward { chunk, micro });
                        let backward = match splits {
                            true => place(Pass::BackwardInput { chunk, micro }),
                            false => place(Pass::Backward { chunk, micro }),
                        };
                        assert!(forward < backward, "{what}");
                        assert!(!splits || backward < place(Pass::BackwardWeight { chunk, micro }), "{what}");
                    }
                }
            }
        }
    }

    /// The passes as PyTorch's `_Action` writes them: virtual stage, kind, micro-batch. Orders that PyTorch has are compared with it in
    /// engine/tests/schedules.rs.
    fn as_pytorch(pipeline: &Pipeline, stage: usize) -> String {
        let word = |pass: Pass| {
            let kind = match pass {
                Pass::Forward { .. } => 'F',
                Pass::Backward { .. } => 'B',
                Pass::BackwardInput { .. } => 'I',
                Pass::BackwardWeight { .. } => 'W',
            };
            format!("{}{kind}{}", pass.chunk() * pipeline.stages + stage, pass.micro())
        };
        pipeline.passes(stage).into_iter().map(word).collect::<Vec<_>>().join(" ")
    }

    /// As PyTorch finds them: the chunk by the number of the pass among the forward (backward) ones, the micro-batch by counting the
    /// passes of the chunk.
    #[test]
    fn interleaved_micro_batches_are_counted_by_chunk() {
        for pipeline in pipelines().into_iter().filter(|pipeline| pipeline.schedule == Interleaved) {
            let Pipeline { stages, chunks, micros, .. } = pipeline;
            for stage in 0..stages {
                let ahead = (2 * (stages - 1 - stage) + (chunks - 1) * stages).min(chunks * micros);
                let (mut forward, mut backward) = (vec![0; chunks], vec![0; chunks]);
                let mut expected = Vec::new();
                for number in 0..chunks * micros + ahead {
                    if number < chunks * micros {
                        let chunk = number / stages % chunks;
                        expected.push(Pass::Forward { chunk, micro: forward[chunk] });
                        forward[chunk] += 1;
                    }
                    if let Some(number) = number.checked_sub(ahead) {
                        let chunk = chunks - 1 - number / stages % chunks;
                        expected.push(Pass::Backward { chunk, micro: backward[chunk] });
                        backward[chunk] += 1;
                    }
                }
                assert_eq!(pipeline.passes(stage), expected, "{pipeline:?}, stage {stage}");
            }
        }
    }

    #[test]
    fn zero_bubble_delays_weight_gradients_by_the_number_of_the_stage() {
        let order = |stage| as_pytorch(&pipeline(ZbH1, [3, 1, 4]), stage);
        assert_eq!(order(0), "0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3");
        assert_eq!(order(1), "1F0 1F1 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3");
        assert_eq!(order(2), "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3");
    }

    /// Milliseconds from the first forward to the last backward. Forward of a stage takes 4, backward 8, half of it for the input;
    /// messages take no time.
    fn makespan(pipeline: Pipeline) -> f64 {
        let lists: Vec<_> = (0..pipeline.stages).map(|stage| pipeline.passes(stage)).collect();
        let last = pipeline.stages * pipeline.chunks - 1;
        // When a virtual stage has made the values, or the gradients, of a micro-batch.
        let mut made = [vec![vec![None; pipeline.micros]; last + 1], vec![vec![None; pipeline.micros]; last + 1]];
        let (mut time, mut next) = (vec![0.0f64; pipeline.stages], vec![0; pipeline.stages]);
        let mut goes_on = true;
        while std::mem::take(&mut goes_on) {
            for (stage, list) in lists.iter().enumerate() {
                while let Some(&pass) = list.get(next[stage]) {
                    let (place, micro) = (pass.chunk() * pipeline.stages + stage, pass.micro());
                    let (of, begin, ms) = match pass {
                        Pass::Forward { .. } if place == 0 => (Some(0), Some(0.0), 4.0),
                        Pass::Forward { .. } => (Some(0), made[0][place - 1][micro], 4.0),
                        Pass::BackwardWeight { .. } => (None, Some(0.0), 4.0),
                        Pass::Backward { .. } | Pass::BackwardInput { .. } => {
                            let ms = if let Pass::Backward { .. } = pass { 8.0 } else { 4.0 };
                            (Some(1), if place == last { made[0][last][micro] } else { made[1][place + 1][micro] }, ms)
                        }
                    };
                    let Some(begin) = begin else { break };
                    time[stage] = time[stage].max(begin) + ms / pipeline.chunks as f64;
                    if let Some(of) = of {
                        made[of][place][micro] = Some(time[stage]);
                    }
                    next[stage] += 1;
                    goes_on = true;
                }
            }
        }
        assert!(next.iter().zip(&lists).all(|(next, list)| *next == list.len()), "{pipeline:?} does not end");
        time.into_iter().fold(0.0, f64::max)
    }

    #[test]
    fn bubbles_are_those_of_the_papers() {
        let ms = |schedule, chunks| makespan(pipeline(schedule, [4, chunks, 8]));
        let all = [ms(Naive, 1), ms(GPipe, 1), ms(OneFOneB, 1), ms(Interleaved, 2), ms(ZbH1, 1)];
        assert_eq!(all, [384.0, 132.0, 132.0, 114.0, 108.0]);
        // Every one of them comes to its end, whatever its sizes.
        pipelines().into_iter().for_each(|pipeline| assert!(makespan(pipeline) >= 12.0 * pipeline.micros as f64));
    }

    #[test]
    fn stages_hold_as_many_micro_batches_as_the_schedule_says() {
        let held = |schedule, [chunks, micros]: [usize; 2]| {
            let pipeline = pipeline(schedule, [4, chunks, micros]);
            (0..4).map(|stage| in_flight(&pipeline.passes(stage))).collect::<Vec<_>>()
        };
        assert_eq!(held(OneFOneB, [1, 8]), [4, 3, 2, 1]);
        assert_eq!(held(OneFOneB, [1, 2]), [2, 2, 2, 1]);
        assert_eq!(held(GPipe, [1, 8]), [8; 4]);
        assert_eq!(held(Naive, [1, 8]), [1; 4]);
        // Until the gradients of weights are there, which come later on later stages.
        assert_eq!(held(ZbH1, [1, 8]), [4; 4]);
        assert_eq!(in_flight(&pipeline(GPipe, [1, 1, 8]).passes(0)), 1);
    }

    /// Between forward and the gradient of the input zero bubble holds what 1F1B holds; interleaving holds more by (p - 1)/(p v) on the
    /// first stage (Korthikanti et al. 2022, section 4.2.3).
    #[test]
    fn activations_are_those_of_the_papers() {
        let held = |schedule, chunks, stage| {
            let (mut live, mut most) = (0usize, 0);
            for pass in pipeline(schedule, [4, chunks, 8]).passes(stage) {
                match pass {
                    Pass::Forward { .. } => live += 1,
                    Pass::Backward { .. } | Pass::BackwardInput { .. } => live -= 1,
                    Pass::BackwardWeight { .. } => {}
                }
                most = most.max(live);
            }
            most
        };
        assert_eq!([0, 1, 2, 3].map(|stage| held(ZbH1, 1, stage)), [4, 3, 2, 1]);
        // In chunks, of which a stage has two.
        assert_eq!([0, 1, 2, 3].map(|stage| held(Interleaved, 2, stage)), [11, 9, 7, 5]);
    }
}
