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

const fn tied(base: Known) -> Known {
    Known { style: Style::LlamaTied, ..base }
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
    (&["gpt3", "13b"], gpt(40, 5120, 40, 50257, 2048)),
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
    (&["opt", "13b"], gpt(24, 2048, 32, 50272, 2048)),
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
    (&["mistral", "nemo"], wide(llama(40, 5120, 32, 8, 14336, 131072), 128)),
    (&["mistral", "large"], llama(88, 12288, 96, 8, 28672, 32768)),
    (&["mistral", "small"], wide(llama(40, 5120, 32, 8, 32768, 131072), 128)),
    (&["gemma3", "27b"], tied(wide(llama(62, 5376, 32, 16, 21504, 262208), 128))),
    (&["gemma3", "12b"], tied(wide(llama(48, 3840, 16, 8, 15360, 262208), 256))),
    (&["gemma3", "4b"], tied(wide(llama(34, 2560, 8, 4, 10240, 262208), 256))),
    (&["gemma2", "27b"], tied(wide(llama(46, 4608, 32, 16, 36864, 256000), 128))),
    (&["gemma2", "9b"], tied(wide(llama(42, 3584, 16, 8, 14336, 256000), 256))),
    (&["gemma22b"], tied(wide(llama(26, 2304, 8, 4, 9216, 256000), 256))),
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
    (&["qwen3", "17b"], tied(wide(llama(28, 2048, 16, 8, 6144, 151936), 128))),
    (&["qwen3", "06b"], tied(wide(llama(28, 1024, 16, 8, 3072, 151936), 128))),
    (&["qwen25", "3b"], tied(llama(36, 2048, 16, 2, 11008, 151936))),
    (&["qwen2", "72b"], llama(80, 8192, 64, 8, 29568, 152064)),
    (&["qwen2", "15b"], tied(llama(28, 1536, 12, 2, 8960, 151936))),
    (&["qwen2", "05b"], tied(llama(24, 896, 14, 2, 4864, 151936))),
    (&["qwen2", "7b"], llama(28, 3584, 28, 4, 18944, 152064)),
    (&["qwen", "110b"], llama(80, 8192, 64, 8, 49152, 152064)),
    (&["qwen", "72b"], llama(80, 8192, 64, 64, 24576, 152064)),
    (&["qwen15", "32b"], llama(64, 5120, 40, 8, 27392, 152064)),
    (&["qwen", "14b"], llama(40, 5120, 40, 40, 13696, 152064)),
    (&["qwen", "18b"], llama(24, 2048, 16, 16, 5504, 151936)),
    (&["qwen", "7b"], llama(32, 4096, 32, 32, 11008, 151936)),
    (&["phi3", "mini"], llama(32, 3072, 32, 32, 8192, 32064)),
    (&["phi3", "medium"], llama(40, 5120, 40, 10, 17920, 32064)),
    (&["phi2"], gpt(32, 2560, 32, 51200, 0)),
    (&["olmo2", "32b"], llama(64, 5120, 40, 8, 27648, 100352)),
    (&["olmo2", "13b"], llama(40, 5120, 40, 40, 13824, 100352)),
    (&["olmo2", "7b"], llama(32, 4096, 32, 32, 11008, 100352)),
    (&["olmo", "7b"], llama(32, 4096, 32, 32, 11008, 50304)),
    (&["baichuan", "13b"], llama(40, 5120, 40, 40, 13696, 125696)),
    (&["baichuan", "7b"], llama(32, 4096, 32, 32, 11008, 125696)),
    (&["internlm2", "20b"], llama(48, 6144, 48, 8, 16384, 92544)),
    (&["internlm", "7b"], llama(32, 4096, 32, 32, 11008, 103168)),
    (&["glm", "130b"], llama(70, 12288, 96, 96, 32768, 150528)),
    (&["dbrx"], moe(llama(40, 6144, 48, 8, 10752, 100352), (16, 4, 10752, 0, 0))),
    (&["gptj"], gpt(28, 4096, 16, 50400, 0)),
    (&["pythia", "12b"], gpt(36, 5120, 40, 50688, 0)),
    (&["pythia", "69b"], gpt(32, 4096, 32, 50688, 0)),
    (&["pythia", "28b"], gpt(32, 2560, 32, 50688, 0)),
    (&["pythia", "14b"], gpt(24, 2048, 16, 50688, 0)),
    (&["pythia", "410m"], gpt(24, 1024, 16, 50688, 0)),
    (&["smollm", "17b"], tied(llama(24, 2048, 32, 32, 8192, 49152))),
    (&["smollm", "360m"], tied(llama(32, 960, 15, 5, 2560, 49152))),
    (&["smollm", "135m"], tied(llama(30, 576, 9, 3, 1536, 49152))),
    (&["deepseek", "67b"], llama(95, 8192, 64, 8, 22016, 102400)),
    (&["deepseek", "7b"], llama(30, 4096, 32, 32, 11008, 102400)),
    (&["deepseekv2", "lite"], latent(moe(llama(27, 2048, 16, 16, 10944, 102400), (64, 6, 1408, 2816, 1)))),
    (&["deepseekv2"], latent(moe(llama(60, 5120, 128, 128, 12288, 102400), (160, 6, 1536, 3072, 1)))),
    (&["deepseekr1"], latent(moe(llama(61, 7168, 128, 128, 18432, 129280), (256, 8, 2048, 2048, 3)))),
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

/// The model of a name. `1.3B` and `13B` are one word without dots: of models whose words fit, it is the first of about the
/// size that the name states.
pub fn by_name(name: &str) -> Option<&'static Known> {
    let said = stated(name).map(|parameters| parameters as f64);
    let name = plain(name);
    let fits = |words: &[&str]| words.iter().all(|word| name.contains(word));
    let sized = |known: &Known| match said {
        Some(said) if known.experts.is_none() => (0.55..1.8).contains(&(size(known) / said)),
        _ => true,
    };
    MODELS.iter().find(|(words, known)| fits(words) && sized(known)).map(|(_, model)| model)
}

/// About the parameters of a model without experts.
fn size(known: &Known) -> f64 {
    let (heads, kv, width) = known.heads;
    let hidden = known.hidden as f64;
    let attention = 2.0 * hidden * ((heads + kv) * width) as f64;
    let gated = matches!(known.style, Style::Llama | Style::LlamaTied | Style::T5Gated);
    let mlp = hidden * known.ffn as f64 * if gated { 3.0 } else { 2.0 };
    let blocks = known.layers.0 as f64 * (attention + mlp);
    let decoder = known.layers.1 as f64 * (2.0 * attention + mlp);
    blocks + decoder + hidden * known.vocab as f64
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_the_model_of_their_size() {
        for (name, layers, hidden) in [
            ("facebook/opt-1.3b", 24, 2048),
            ("OPT-13B", 40, 5120),
            ("GPT3-1.3B", 24, 2048),
            ("GPT-3 13B", 40, 5120),
            ("Qwen/Qwen3-1.7B", 28, 2048),
            ("Qwen2.5-72B-Instruct", 80, 8192),
            ("Qwen1.5-14B", 40, 5120),
            ("google/gemma-2b", 18, 2048),
            ("gemma-2-2b", 26, 2304),
            ("gemma-2-27b-it", 46, 4608),
            ("Meta-Llama-3.1-70B", 80, 8192),
            ("meta-llama/Llama-2-7b-hf", 32, 4096),
            ("EleutherAI/pythia-1.4b", 24, 2048),
            ("deepseek-llm-67b-base", 95, 8192),
            ("mistralai/Mistral-7B-v0.1", 32, 4096),
            ("GPT-2-XL (1.5B)", 48, 1600),
        ] {
            let known = by_name(name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!((known.layers.0, known.hidden), (layers, hidden), "{name}");
        }
    }

    #[test]
    fn every_model_is_of_the_size_that_its_words_state() {
        // `67b` stands for 6.7 and 67 and `13b` for 1.3 and 13: one of both must fit.
        for (words, known) in MODELS.iter().filter(|(_, known)| known.experts.is_none()) {
            let Some(said) = words.iter().find_map(|word| stated(word)) else { continue };
            let near = [1.0, 10.0, 100.0].iter().any(|by| (0.55..1.8).contains(&(size(known) * by / said as f64)));
            assert!(near, "{words:?}: {:.3e} of {said}", size(known));
        }
    }
}
