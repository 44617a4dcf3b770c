//! Flags as a configuration: the same keys, checks and resolution as a file's.

use super::args::IoArgs;
use crate::kernels::flags::{Flags, or};
use zbench_config::{ConfigError, Document};

/// `zbench io` without a file.
///
/// # Errors
/// A value that no key takes, with its flag.
pub fn io(arguments: &IoArgs) -> Result<Document, ConfigError> {
    let mut flags = Flags::new("io");
    flags.put("link", "io.link", arguments.link.as_slice());
    flags.put("size", "io.size", &arguments.size);
    flags.put("engine", "io.engine", &or(&arguments.engine, &["io_uring", "threads"]));
    flags.put("direct", "io.direct", &or(&arguments.direct, &["true", "false"]));
    flags.put("depth", "io.depth", &or(&arguments.depth, &["1", "8"]));
    flags.put("pattern", "io.pattern", arguments.pattern.as_slice());
    flags.put("file-size", "io.file", arguments.file_size.as_slice());
    flags.put("seconds", "io.seconds", arguments.seconds.as_slice());
    flags.put("device", "hardware.device", arguments.device.as_slice());
    flags.put("dir", "io.dir", arguments.dir.as_slice());
    if arguments.no_fio {
        flags.put("no-fio", "io.fio", &["false"]);
    }
    flags.finish(&arguments.run.set)
}
