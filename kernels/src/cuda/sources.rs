//! The kernels' sources, which the program carries with it.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Name of the file without its ending.
    pub name: &'static str,
    pub text: &'static str,
    /// Whether it needs Hopper's own instructions (sm_90a), which nothing imitates on a processor.
    pub hopper: bool,
}

macro_rules! source {
    ($name:literal, $hopper:literal) => {
        Source { name: $name, text: include_str!(concat!("../../cuda/", $name, ".cu")), hopper: $hopper }
    };
}

macro_rules! header {
    ($name:literal) => {
        ($name, include_str!(concat!("../../cuda/", $name)))
    };
}

/// Files that sources include, by name.
pub const HEADERS: &[(&str, &str)] = &[
    header!("prelude.h"),
    header!("host.h"),
    header!("attention.h"),
    header!("tiles.h"),
    header!("plain.h"),
    header!("rows.h"),
    header!("product.h"),
    header!("tensor.h"),
    header!("hopper.h"),
];

pub const SOURCES: &[Source] = &[
    source!("elementwise", false),
    source!("embedding", false),
    source!("gemm_any", false),
    source!("gemm_bf16", false),
    source!("gemm_f16", false),
    source!("loss", false),
    source!("norms", false),
    source!("rows", false),
    source!("attention", false),
    source!("attention_forward", false),
    source!("attention_backward", false),
    source!("attention_plain", false),
    source!("attention_plain_backward", false),
    source!("reduce", false),
    source!("quantize", false),
    source!("packed", false),
    source!("experts", false),
    source!("attention_hopper", true),
];

impl Source {
    /// The kernels it exports, in the order of the text.
    pub fn kernels(&self) -> impl Iterator<Item = &'static str> {
        let lines = self.text.lines().filter_map(|line| line.strip_prefix("EXPORT("));
        lines.filter_map(|rest| rest.split_once(')').map(|(name, _)| name))
    }

    /// The source that exports a kernel.
    pub fn of(kernel: &str) -> Option<&'static Source> {
        SOURCES.iter().find(|source| source.kernels().any(|name| name == kernel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_included_is_carried() {
        let texts = SOURCES.iter().map(|source| source.text).chain(HEADERS.iter().map(|(_, text)| *text));
        let included = texts.flat_map(str::lines).filter_map(|line| line.strip_prefix("#include \""));
        for name in included.map(|rest| rest.trim_end_matches('"')) {
            assert!(HEADERS.iter().any(|(header, _)| *header == name), "{name} is included, and no header");
        }
    }

    #[test]
    fn every_kernel_is_exported_once() {
        let mut names: Vec<&str> = SOURCES.iter().flat_map(Source::kernels).collect();
        let written = |text: &str| text.lines().filter(|line| line.contains("__global__ void")).count();
        assert_eq!(names.len(), SOURCES.iter().map(|source| written(source.text)).sum::<usize>());
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{names:?}");
    }
}
