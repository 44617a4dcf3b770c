//! Flags as a configuration: the same keys, checks and resolution as a file's.

use super::args::CheckpointArgs;
use crate::kernels::flags::{Flags, model_key, model_value, or};
use zbench_config::{ConfigError, Document};

/// `zbench checkpoint` without a file.
///
/// # Errors
/// A value that no key takes, with its flag.
pub fn checkpoint(arguments: &CheckpointArgs) -> Result<Document, ConfigError> {
    let mut flags = Flags::new("checkpoint");
    if let Some(model) = &arguments.model {
        flags.put("model", model_key(model)?, &[model_value(model)]);
    }
    flags.put("ranks", "parallel.ranks", &or(&arguments.ranks, &["4"]));
    flags.put("strategy", "parallel.strategy", &or(&arguments.strategy, &["zero3"]));
    flags.put("layout", "checkpoint.layout", &arguments.layout);
    flags.put("seq-len", "train.seq_len", &[arguments.seq_len.as_deref().unwrap_or("64")]);
    flags.put("precision", "precision.preset", arguments.precision.as_slice());
    flags.put("async", "checkpoint.async", &[if arguments.no_async { "false" } else { "true" }]);
    if arguments.buffered {
        flags.put("buffered", "checkpoint.direct", &["false"]);
    }
    flags.put("repeats", "checkpoint.repeats", arguments.repeats.as_slice());
    flags.put("dir", "checkpoint.dir", arguments.dir.as_slice());
    if !arguments.load_as.is_empty() {
        let list: Vec<String> = arguments.load_as.iter().map(|spec| format!("{:?}", spec.trim())).collect();
        flags.put("load-as", "checkpoint.load_as", &[format!("[{}]", list.join(", "))]);
    }
    flags.finish(&arguments.run.set)
}
