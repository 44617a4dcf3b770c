//! Training checkpoints, evaluation and the detection of divergence.

use super::sources::absolute;
use super::{Context, Refusal, Values};
use zbench_engine::config::{Divergence, Evaluation, Resume, SaveLayout, Saving, Watch};

/// Training checkpoints; `None` without a folder. Then the other keys of the section are refused.
pub(super) fn saving(values: &Values, context: &Context) -> Result<Option<Saving>, Refusal> {
    let Some(dir) = values.given_text("checkpoint.dir") else {
        let stated = values.settings.keys().find(|key| key.starts_with("checkpoint."));
        return match stated {
            None => Ok(None),
            Some(key) => Err(values.refuse(
                key,
                &[],
                "has no effect without checkpoint.dir, the folder for training checkpoints",
            )),
        };
    };
    Ok(Some(Saving {
        dir: absolute(&context.folder.join(dir)),
        every: values.count("checkpoint.every") as u64,
        keep: values.count("checkpoint.keep"),
        layout: values.choice("checkpoint.layout").unwrap_or(SaveLayout::Sharded),
        asynchronous: values.is("checkpoint.async"),
        direct: values.is("checkpoint.direct"),
        resume: match values.text("checkpoint.resume").as_str() {
            "auto" => Resume::Auto,
            "never" => Resume::Never,
            "" => {
                let message = "is empty; write \"auto\", \"never\" or the folder of a checkpoint";
                return Err(values.refuse("checkpoint.resume", &[], message));
            }
            folder => Resume::From(absolute(&context.folder.join(folder))),
        },
    }))
}

/// Evaluation, and the end of a run that diverges.
pub(super) fn watch(values: &Values) -> Result<Option<Watch>, Refusal> {
    let switches = [
        ("train.eval_every", ["train.eval_batches", "train.eval_share"]),
        ("train.divergence_factor", ["train.divergence_steps", "train.divergence_steps"]),
    ];
    for (switch, others) in switches {
        if let Some(key) = others.into_iter().find(|key| values.given(key).is_some() && values.given(switch).is_none())
        {
            return Err(values.refuse(
                key,
                &[],
                format!("has no effect without {switch}; write that, too, or leave it out"),
            ));
        }
    }
    let every = values.count("train.eval_every") as u64;
    let evaluation = (every > 0).then(|| Evaluation {
        every,
        batches: values.count("train.eval_batches"),
        share: values.real("train.eval_share"),
    });
    let factor = values.real("train.divergence_factor");
    if factor > 0.0 && factor <= 1.0 {
        let reason =
            "ends every run: a loss is never below its smallest; write more than 1, as 2.0, or 0 for no such end";
        return Err(values.refuse("train.divergence_factor", &[], reason));
    }
    let divergence =
        (factor > 0.0).then(|| Divergence { factor, steps: values.count("train.divergence_steps") as u64 });
    Ok((evaluation.is_some() || divergence.is_some()).then_some(Watch { evaluation, divergence }))
}
