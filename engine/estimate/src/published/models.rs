//! Shapes of well-known models by name: what their model cards and configuration files say.

/// How a family of models is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// GPT-2, GPT-3, OPT, BLOOM, MPT, BERT: plain MLP, layer norm, biases, tied head.
    Gpt,
    /// Llama and what followed: gated MLP, RMS norm, no biases, own head.
    Llama,
    /// The same with the head tied.
    LlamaTied,
    /// T5 1.0: encoder and decoder, plain MLP, RMS norm, no biases, tied.
    T5,
    /// T5 1.1 and mT5: gated MLP, own head.
    T5Gated,
    /// Falcon: plain MLP, layer norm, no biases, tied.
    Falcon,
}

/// A model.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Blocks; those of a decoder beside an encoder.
    pub layers: (usize, usize),
    /// Width.
    pub hidden: usize,
    /// Heads, key and value heads, elements of one.
    pub heads: (usize, usize, usize),
    /// Width of the MLP.
    pub ffn: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Rows of a learned position table.
    pub positions: usize,
    /// How it is built.
    pub style: Style,
    /// Experts, chosen, width of one, width of shared ones, blocks without.
    pub experts: Option<(usize, usize, usize, usize, usize)>,
    /// Multi-latent attention as DeepSeek-V3 has it.
    pub latent: bool,
}

const fn known(layers: usize, hidden: usize, heads: usize, kv: usize, ffn: usize, vocab: usize, style: Style) -> Known {
    Known {
        layers: (layers, 0),
        hidden,
        heads: (heads, kv, hidden / heads),
        ffn,
        vocab,
        positions: 0,
        style,
        experts: None,
        latent: false,
    }
}

const fn gpt(layers: usize, hidden: usize, heads: usize, vocab: usize, positions: usize) -> Known {
    Known { positions, ..known(layers, hidden, heads, heads, 4 * hidden, vocab, Style::Gpt) }
}

const fn llama(layers: usize, hidden: usize, heads: usize, kv: usize, ffn: usize, vocab: usize) -> Known {
    known(layers, hidden, heads, kv, ffn, vocab, Style::Llama)
}

const fn t5(
    layers: usize,
    hidden: usize,
    heads: usize,
    head_dim: usize,
    ffn: usize,
    vocab: usize,
    style: Style,
) -> Known {
    Known {
        layers: (layers, layers),
        heads: (heads, heads, head_dim),
        ..known(layers, hidden, heads, heads, ffn, vocab, style)
    }
}

const fn moe(base: Known, experts: (usize, usize, usize, usize, usize)) -> Known {
    Known { experts: Some(experts), ..base }
}

const fn wide(base: Known, head_dim: usize) -> Known {
    Known { heads: (base.heads.0, base.heads.1, head_dim), ..base }
}

const fn latent(base: Known) -> Known {
    Known { latent: true, ..base }
}

/// Words that a name must all hold (in lower case, without blanks, dashes, dots and underscores), and the model. The
/// first that fits counts.
const MODELS: &[(&[&str], Known)] = &[
    (&["gpt2", "124m"], gpt(12, 768, 12, 50257, 1024)),
    (&["gpt2", "125m"], gpt(12, 768, 12, 50257, 1024)),
    (&["gpt2", "medium"], gpt(24, 1024, 16, 50257, 1024)),
    (&["gpt2", "35"], gpt(24, 1024, 16, 50257, 1024)),
    (&["gpt2", "large"], gpt(36, 1280, 20, 50257, 1024)),
    (&["gpt2", "77"], gpt(36, 1280, 20, 50257, 1024)),
    (&["gpt2", "760m"], gpt(36, 1280, 20, 50257, 1024)),
    (&["gpt2", "xl"], gpt(48, 1600, 25, 50257, 1024)),
    (&["gpt2", "15"], gpt(48, 1600, 25, 50257, 1024)),
    (&["gpt2", "16b"], gpt(48, 1600, 25, 50257, 1024)),
    (&["gpt3", "125m"], gpt(12, 768, 12, 50257, 2048)),
    (&["gpt3", "35"], gpt(24, 1024, 16, 50257, 2048)),
    (&["gpt3", "76"], gpt(24, 1536, 16, 50257, 2048)),
    (&["gpt3", "13b"], gpt(24, 2048, 16, 50257, 2048)),
    (&["gpt3", "27b"], gpt(32, 2560, 32, 50257, 2048)),
    (&["gpt3", "67b"], gpt(32, 4096, 32, 50257, 2048)),
    (&["gpt3", "175b"], gpt(96, 12288, 96, 51200, 2048)),
    (&["gpt175b"], gpt(96, 12288, 96, 51200, 2048)),
    (&["gptneox", "20b"], gpt(44, 6144, 64, 50432, 0)),
    (&["mtnlg"], gpt(105, 20480, 128, 51200, 2048)),
    (&["gpt22b"], gpt(48, 6144, 64, 51200, 2048)),
    (&["gpt", "1t"], gpt(128, 25600, 160, 51200, 2048)),
    (&["gpt", "530b"], gpt(105, 20480, 128, 51200, 2048)),
    (&["mpt", "125m"], gpt(12, 768, 12, 50368, 2048)),
    (&["mpt", "350m"], gpt(24, 1024, 16, 50368, 2048)),
    (&["mpt", "760m"], gpt(24, 1536, 12, 50368, 2048)),
    (&["mpt", "1b"], gpt(24, 2048, 16, 50368, 2048)),
    (&["mpt", "3b"], gpt(32, 2560, 20, 50368, 2048)),
    (&["mpt", "7b"], gpt(32, 4096, 32, 50368, 2048)),
    (&["mpt", "13b"], gpt(40, 5120, 40, 50368, 2048)),
    (&["mpt", "30b"], gpt(48, 7168, 56, 50368, 2048)),
    (&["mpt", "70b"], gpt(80, 8192, 64, 50368, 2048)),
    (&["opt", "125m"], gpt(12, 768, 12, 50272, 2048)),
    (&["opt", "350m"], gpt(24, 1024, 16, 50272, 2048)),
    (&["opt", "13b"], gpt(40, 5120, 40, 50272, 2048)),
    (&["opt", "27b"], gpt(32, 2560, 32, 50272, 2048)),
    (&["opt", "67b"], gpt(32, 4096, 32, 50272, 2048)),
    (&["opt", "30b"], gpt(48, 7168, 56, 50272, 2048)),
    (&["opt", "66b"], gpt(64, 9216, 72, 50272, 2048)),
    (&["opt", "175b"], gpt(96, 12288, 96, 50272, 2048)),
    (&["bloom", "560m"], gpt(24, 1024, 16, 250880, 0)),
    (&["bloom", "1b1"], gpt(24, 1536, 16, 250880, 0)),
    (&["bloom", "1b7"], gpt(24, 2048, 16, 250880, 0)),
    (&["bloom", "3b"], gpt(30, 2560, 32, 250880, 0)),
    (&["bloom", "7b"], gpt(30, 4096, 32, 250880, 0)),
    (&["bloom", "176b"], gpt(70, 14336, 112, 250880, 0)),
    (&["bert", "large"], gpt(24, 1024, 16, 30522, 512)),
    (&["bert", "base"], gpt(12, 768, 12, 30522, 512)),
    (&["falcon", "180b"], known(80, 14848, 232, 8, 59392, 65024, Style::Falcon)),
    (&["falcon", "40b"], known(60, 8192, 128, 8, 32768, 65024, Style::Falcon)),
    (&["falcon", "7b"], known(32, 4544, 71, 1, 18176, 65024, Style::Falcon)),
    (&["tinyllama"], llama(22, 2048, 32, 4, 5632, 32000)),
    (&["llama32", "1b"], Known { style: Style::LlamaTied, ..llama(16, 2048, 32, 8, 8192, 128256) }),
    (&["llama32", "3b"], Known { style: Style::LlamaTied, ..llama(28, 3072, 24, 8, 8192, 128256) }),
    (&["llama3", "405b"], llama(126, 16384, 128, 8, 53248, 128256)),
    (&["llama3", "70b"], llama(80, 8192, 64, 8, 28672, 128256)),
    (&["llama3", "8b"], llama(32, 4096, 32, 8, 14336, 128256)),
    (&["codellama", "34b"], llama(48, 8192, 64, 8, 22016, 32000)),
    (&["llama2", "70b"], llama(80, 8192, 64, 8, 28672, 32000)),
    (&["llama2", "34b"], llama(48, 8192, 64, 8, 22016, 32000)),
    (&["llama", "65b"], llama(80, 8192, 64, 64, 22016, 32000)),
    (&["guanaco", "65b"], llama(80, 8192, 64, 64, 22016, 32000)),
    (&["llama", "33b"], llama(60, 6656, 52, 52, 17920, 32000)),
    (&["llama", "30b"], llama(60, 6656, 52, 52, 17920, 32000)),
    (&["guanaco", "33b"], llama(60, 6656, 52, 52, 17920, 32000)),
    (&["llama", "13b"], llama(40, 5120, 40, 40, 13824, 32000)),
    (&["guanaco", "13b"], llama(40, 5120, 40, 40, 13824, 32000)),
    (&["vicuna", "13b"], llama(40, 5120, 40, 40, 13824, 32000)),
    (&["llama", "7b"], llama(32, 4096, 32, 32, 11008, 32000)),
    (&["guanaco", "7b"], llama(32, 4096, 32, 32, 11008, 32000)),
    (&["vicuna", "7b"], llama(32, 4096, 32, 32, 11008, 32000)),
    (&["llama", "70b"], llama(80, 8192, 64, 8, 28672, 32000)),
    (&["llama", "8b"], llama(32, 4096, 32, 8, 14336, 128256)),
    (&["llama", "405b"], llama(126, 16384, 128, 8, 53248, 128256)),
    (&["yi", "34b"], llama(60, 7168, 56, 8, 20480, 64000)),
    (&["yi", "6b"], llama(32, 4096, 32, 4, 11008, 64000)),
    (&["mixtral", "8x22b"], moe(llama(56, 6144, 48, 8, 16384, 32768), (8, 2, 16384, 0, 0))),
    (&["mixtral"], moe(llama(32, 4096, 32, 8, 14336, 32000), (8, 2, 14336, 0, 0))),
    (&["mistral", "7b"], llama(32, 4096, 32, 8, 14336, 32000)),
    (&["gemma", "2b"], Known { style: Style::LlamaTied, ..wide(llama(18, 2048, 8, 1, 16384, 256000), 256) }),
    (&["gemma", "7b"], Known { style: Style::LlamaTied, ..wide(llama(28, 3072, 16, 16, 24576, 256000), 256) }),
    (&["qwen3", "30b"], moe(wide(llama(48, 2048, 32, 4, 6144, 151936), 128), (128, 8, 768, 0, 0))),
    (&["qwen3", "235b"], moe(wide(llama(94, 4096, 64, 4, 12288, 151936), 128), (128, 8, 1536, 0, 0))),
    (&["qwen3", "32b"], wide(llama(64, 5120, 64, 8, 25600, 151936), 128)),
    (&["qwen3", "14b"], wide(llama(40, 5120, 40, 8, 17408, 151936), 128)),
    (&["qwen3", "8b"], wide(llama(36, 4096, 32, 8, 12288, 151936), 128)),
    (&["qwen3", "4b"], Known { style: Style::LlamaTied, ..wide(llama(36, 2560, 32, 8, 9728, 151936), 128) }),
    (&["qwen25", "72b"], llama(80, 8192, 64, 8, 29568, 152064)),
    (&["qwen25", "32b"], llama(64, 5120, 40, 8, 27648, 152064)),
    (&["qwen25", "14b"], llama(48, 5120, 40, 8, 13824, 152064)),
    (&["qwen25", "7b"], llama(28, 3584, 28, 4, 18944, 152064)),
    (&["deepseekv3"], latent(moe(llama(61, 7168, 128, 128, 18432, 129280), (256, 8, 2048, 2048, 3)))),
    (&["kimik2"], latent(moe(llama(61, 7168, 64, 64, 18432, 163840), (384, 8, 2048, 2048, 1)))),
    (&["gptoss", "120b"], moe(wide(llama(36, 2880, 64, 8, 2880, 201088), 64), (128, 4, 2880, 0, 0))),
    (&["gptoss", "20b"], moe(wide(llama(24, 2880, 64, 8, 2880, 201088), 64), (32, 4, 2880, 0, 0))),
    (&["nemotron", "340b"], known(96, 18432, 96, 8, 73728, 256000, Style::Falcon)),
    (&["nemotron", "15b"], known(32, 6144, 48, 8, 24576, 256000, Style::Falcon)),
    (&["nemotron", "8b"], known(32, 4096, 32, 32, 16384, 256000, Style::Falcon)),
    (&["mt0", "xxl"], t5(24, 4096, 64, 64, 10240, 250112, Style::T5Gated)),
    (&["mt5", "xxl"], t5(24, 4096, 64, 64, 10240, 250112, Style::T5Gated)),
    (&["mt5", "xl"], t5(24, 2048, 32, 64, 5120, 250112, Style::T5Gated)),
    (&["t03b"], t5(24, 2048, 32, 64, 5120, 32128, Style::T5Gated)),
    (&["t0", "11b"], t5(24, 4096, 64, 64, 10240, 32128, Style::T5Gated)),
    (&["flant5", "xxl"], t5(24, 4096, 64, 64, 10240, 32128, Style::T5Gated)),
    (&["flant5", "xl"], t5(24, 2048, 32, 64, 5120, 32128, Style::T5Gated)),
    (&["t5", "11b"], t5(24, 1024, 128, 128, 65536, 32128, Style::T5)),
    (&["t5", "3b"], t5(24, 1024, 32, 128, 16384, 32128, Style::T5)),
    (&["t5", "large"], t5(24, 1024, 16, 64, 4096, 32128, Style::T5)),
    (&["t5", "base"], t5(12, 768, 12, 64, 3072, 32128, Style::T5)),
    (&["t5", "small"], t5(6, 512, 8, 64, 2048, 32128, Style::T5)),
];

/// A name without case, blanks, dashes, dots and underscores.
pub fn plain(name: &str) -> String {
    name.to_lowercase().chars().filter(|c| c.is_alphanumeric()).collect()
}

/// The model of a name.
pub fn by_name(name: &str) -> Option<&'static Known> {
    let name = plain(name);
    let fits = |words: &[&str]| words.iter().all(|word| name.contains(word));
    MODELS.iter().find(|(words, _)| fits(words)).map(|(_, model)| model)
}

/// Parameters that a name states: `7.5B`, `125m`, `1.01T`.
pub fn stated(name: &str) -> Option<u64> {
    let lower = name.to_lowercase();
    let bytes: Vec<char> = lower.chars().collect();
    let mut place = 0;
    while place < bytes.len() {
        if !bytes[place].is_ascii_digit() {
            place += 1;
            continue;
        }
        let digits: String = bytes[place..].iter().take_while(|c| c.is_ascii_digit() || **c == '.').collect();
        let end = place + digits.len();
        let scale = match bytes.get(end) {
            Some('m') => 1e6,
            Some('b') => 1e9,
            Some('t') => 1e12,
            _ => 0.0,
        };
        let ends_there = !bytes.get(end + 1).is_some_and(|c| c.is_ascii_alphanumeric());
        if scale > 0.0 && ends_there {
            return digits.trim_end_matches('.').parse::<f64>().ok().map(|n| (n * scale) as u64);
        }
        place = end;
    }
    None
}
