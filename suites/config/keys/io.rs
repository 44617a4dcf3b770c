//! The keys of the suite `io`.

use super::{
    Default::{From, Is},
    Key,
    Kind::{Bool, Bytes, Choice, Count, Path, Real},
    key,
};

pub(super) const KEYS: &[Key] = &[
    key(
        "io.link",
        Choice(&["all", "disk", "device"]),
        Is("\"all\""),
        "Suite io: what is measured. disk: a file; device: copies from host memory to hardware.device and back, on a cpu from \
         memory to memory.",
    ),
    key("io.pattern", Choice(&["both", "sequential", "random"]), Is("\"both\""), "The order of transfers in the file."),
    key("io.size", Bytes, Is("\"1MiB\""), "Bytes of a tensor that is transferred; a multiple of 4KiB."),
    key(
        "io.depth",
        Count { min: 1, max: 256 },
        Is("8"),
        "Requests that the system has at a time, of up to 1 MiB each: a larger tensor is several.",
    ),
    key(
        "io.engine",
        Choice(&["auto", "io_uring", "threads"]),
        Is("\"auto\""),
        "Who transfers; auto: io_uring where the system allows it, else threads.",
    ),
    key("io.direct", Bool, From("true where the file system can"), "Whether past the page cache (O_DIRECT)."),
    key("io.file", Bytes, Is("\"256MiB\""), "Bytes of the file, which is written once before it is measured."),
    key(
        "io.seconds",
        Real { min: 0.0, max: 3600.0, positive: true },
        Is("0.5"),
        "Time of each pass: writes and reads of each pattern, and as much of fio's.",
    ),
    key("io.fio", Bool, Is("true"), "Whether fio measures the same beside it, where it is installed."),
    key("io.dir", Path, From("the notebook's folder"), "Folder on the disk that is measured; nothing is left there."),
];
