//! The model of a row.

use super::flags::{Flags, dense_blocks};
use super::models::{self, Known, Style};
use super::row::Row;
use super::words::any;
use crate::job::{Experts, Kind, Latent, Shape, Stack};

/// The model of a row, and what of it had to be assumed; or why there is none.
pub fn shape(row: &Row, flags: &Flags, stack: Stack, assumed: &mut Vec<String>) -> Result<Shape, String> {
    let name = row.words("model");
    if any(&name, &["vit", "vision", "resnet", "diffusion", "unet", "clip"]) && row.count("hidden").is_none() {
        return Err(format!("`{}` is no language model, and its shape is not given", row.text("model")));
    }
    let known = models::by_name(&name);
    let stated = row
        .number("n_params")
        .filter(|n| (1.0..1e17).contains(n))
        .map(|n| n as u64)
        .or_else(|| models::stated(&name))
        .unwrap_or(0);
    let only_count = any(&name, &["parameter count only"]) || row.words("framework") == "formula";
    let sized = row.pair("layers").is_some() && row.positive("hidden").is_some();
    if !sized && (known.is_none() || only_count) {
        if stated == 0 {
            return Err("the row gives neither a model's shape nor its parameters".into());
        }
        if only_count {
            let named = known.filter(|_| !name.contains("count only"));
            return Ok(exact(row, flags, named, stack, stated).unwrap_or_else(|| count(stated, row)));
        }
        return Ok(from_parameters(stated, row, assumed));
    }
    let mut shape = from_cells(row, flags, known, stack, assumed)?;
    shape.stated_parameters = stated;
    if size(&shape) > 1e16 {
        return Err("the model's shape has more than 1e16 parameters".into());
    }
    Ok(shape)
}

/// About the parameters of a shape, in floating point: for shapes that are too large for anything else.
fn size(shape: &Shape) -> f64 {
    let (hidden, width) = (shape.hidden as f64, shape.heads as f64 * shape.head_dim as f64);
    let latent = shape.latent.map_or(0.0, |l| (l.q_rank + l.kv_rank + l.rope_dim) as f64);
    let latent_width = shape.latent.map_or(0.0, |l| shape.heads as f64 * (l.qk_dim + l.rope_dim + l.v_dim) as f64);
    let attention = (hidden + latent) * (4.0 * width + latent + 2.0 * latent_width);
    let experts = shape.experts.as_ref();
    let sparse = experts.map_or(0.0, |e| hidden * (3.0 * e.count as f64 * e.ffn as f64 + 3.0 * e.shared_ffn as f64));
    let decoder =
        if let Kind::EncoderDecoder { decoder_layers, .. } = shape.kind { decoder_layers as f64 } else { 0.0 };
    let blocks = (shape.layers + shape.ahead) as f64 + decoder;
    let ends = 2.0 * (shape.vocab as f64 + shape.positions as f64) * hidden;
    blocks * (2.0 * attention + 3.0 * hidden * shape.ffn as f64 + sparse) + ends
}

/// A GPT of about so many parameters.
pub fn gpt_of(parameters: u64) -> Shape {
    let hidden = width_of(parameters);
    let layers = ((parameters as f64 / (12.0 * (hidden as f64).powi(2))).round() as usize).max(1);
    Shape { stated_parameters: parameters, ..plain(layers, hidden, (hidden / 128).max(1)) }
}

/// Nothing but a count of parameters.
pub fn count_of(parameters: u64) -> Shape {
    Shape { kind: Kind::Count { largest_layer: 0 }, stated_parameters: parameters, ..plain(0, 0, 1) }
}

/// Published GPTs have hidden = 128 x layers over three orders of magnitude.
fn width_of(parameters: u64) -> usize {
    let width = (parameters as f64 * 128.0 / 12.0).cbrt();
    ((width / 128.0).round() as usize * 128).max(128)
}

fn plain(layers: usize, hidden: usize, heads: usize) -> Shape {
    Shape {
        kind: Kind::Decoder,
        layers,
        hidden,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads.max(1),
        ffn: 4 * hidden,
        vocab: 50304,
        gated: false,
        bias: true,
        tied: true,
        positions: 0,
        norm_bias: true,
        causal: true,
        window: 0,
        dropout: false,
        experts: None,
        latent: None,
        ahead: 0,
        stated_parameters: 0,
    }
}

fn count(stated: u64, row: &Row) -> Shape {
    let largest_layer = largest(&row.words("notes")).unwrap_or(0);
    Shape { kind: Kind::Count { largest_layer }, stated_parameters: stated, ..plain(0, 0, 1) }
}

/// The count of a well-known model of about the parameters that the row states in round numbers. Its largest layer is what
/// DeepSpeed calls so: the embedding, or the largest matrix.
fn exact(row: &Row, flags: &Flags, known: Option<&Known>, stack: Stack, stated: u64) -> Option<Shape> {
    let model = from_cells(row, flags, Some(known?), stack, &mut Vec::new()).ok()?;
    let parameters = model.parameters();
    if (parameters as f64 / stated.max(1) as f64 - 1.0).abs() > 1e-3 {
        return None;
    }
    let matrices = model.blocks().into_iter().flat_map(|block| block.matrices);
    let largest = matrices.map(|m| m.parameters()).max().unwrap_or(0);
    let embedding = model.vocab as u64 * model.hidden as u64;
    Some(Shape { kind: Kind::Count { largest_layer: largest.max(embedding) }, ..count(parameters, row) })
}

/// The number after `largest layer`: `32000000`, `32.90M`.
fn largest(notes: &str) -> Option<u64> {
    let rest = &notes[notes.find("largest layer")? + "largest layer".len()..];
    let rest = rest.trim_start_matches([' ', '=', ':']);
    let digits: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let scale = match rest.chars().nth(digits.len()) {
        Some('k') => 1e3,
        Some('m') => 1e6,
        Some('b') => 1e9,
        _ => 1.0,
    };
    digits.trim_end_matches('.').parse::<f64>().ok().map(|n| (n * scale).round() as u64)
}

/// A GPT of the parameters that a row states.
fn from_parameters(stated: u64, row: &Row, assumed: &mut Vec<String>) -> Shape {
    let hidden = row.positive("hidden").unwrap_or(width_of(stated));
    let per_layer = 12.0 * hidden as f64 * hidden as f64;
    let layers = row.pair("layers").map_or(((stated as f64 / per_layer).round() as usize).max(1), |pair| pair.0);
    let heads = row.positive("heads").unwrap_or((hidden / 128).max(1));
    assumed.push(format!("shape of a GPT of {stated} parameters: {layers} layers of {hidden}"));
    let mut shape = plain(layers, hidden, heads);
    shape.vocab = row.positive("vocab").unwrap_or(shape.vocab);
    shape.stated_parameters = stated;
    shape
}

fn style(row: &Row, known: Option<&Known>, mlp: &str, name: &str) -> Style {
    if any(mlp, &["enc-dec", "encoder"]) || name.contains("t5") {
        let gated = any(mlp, &["gated", "geglu", "swiglu"])
            || (mlp.is_empty() && known.is_some_and(|k| k.style == Style::T5Gated));
        return if gated { Style::T5Gated } else { Style::T5 };
    }
    if any(mlp, &["swiglu", "geglu", "silu", "gated", "glu"]) {
        return known.map_or(Style::Llama, |k| if k.style == Style::LlamaTied { k.style } else { Style::Llama });
    }
    if any(mlp, &["relu2", "squared"]) {
        return Style::Falcon;
    }
    match known {
        Some(known) if mlp.is_empty() || known.style != Style::Llama => known.style,
        _ => {
            let llama = mlp.is_empty() && any(name, &["llama", "mistral", "qwen", "gemma", "yi-", "deepseek"]);
            let grouped =
                mlp.is_empty() && row.positive("kv_heads").is_some_and(|kv| Some(kv) != row.positive("heads"));
            if llama || grouped { Style::Llama } else { Style::Gpt }
        }
    }
}

fn from_cells(
    row: &Row,
    flags: &Flags,
    known: Option<&Known>,
    stack: Stack,
    assumed: &mut Vec<String>,
) -> Result<Shape, String> {
    let (mlp, name) = (row.words("mlp"), row.words("model"));
    let style = style(row, known, &mlp, &name);
    let layers = row.pair("layers").or(known.map(|k| (k.layers.0, Some(k.layers.1).filter(|n| *n > 0))));
    let (layers, decoder_layers) = layers.ok_or("the row gives no number of layers")?;
    let hidden = row.positive("hidden").or(known.map(|k| k.hidden)).ok_or("the row gives no hidden size")?;
    let same_width = known.filter(|k| k.hidden == hidden);
    let heads = row.positive("heads").or(same_width.map(|k| k.heads.0)).unwrap_or_else(|| {
        assumed.push("heads of 128 elements".into());
        (hidden / 128).max(1)
    });
    let kv_heads = row.positive("kv_heads").or(same_width.map(|k| k.heads.1)).unwrap_or(heads).min(heads);
    let head_dim = flags.count("kv-channels").filter(|n| *n > 0);
    let head_dim =
        head_dim.or(same_width.filter(|k| k.heads.0 == heads).map(|k| k.heads.2)).unwrap_or((hidden / heads).max(1));
    let ffn = row.positive("ffn").or(same_width.map(|k| k.ffn)).unwrap_or(if style == Style::Llama {
        (8 * hidden / 3).div_ceil(256) * 256
    } else {
        4 * hidden
    });
    let bert = name.contains("bert");
    let vocab = row
        .positive("vocab")
        .or(same_width.map(|k| k.vocab))
        .unwrap_or_else(|| default_vocab(&name, style, bert, assumed));
    let gpt = style == Style::Gpt;
    let rope = flags.text("position-embedding-type").is_some_and(|p| p != "learned_absolute");
    let core = matches!(stack, Stack::MegatronCore | Stack::MegatronLm);
    let megatron = core && row.words("model").contains("megatron ci");
    let rms = flags.text("normalization").is_some_and(|n| n.eq_ignore_ascii_case("rmsnorm"));
    let seq = row.pair("seq").map_or(0, |pair| pair.0);
    let positions = if rope || !(gpt || megatron) {
        0
    } else if megatron {
        seq
    } else {
        same_width.map_or(0, |k| if name.contains("mpt") { seq } else { k.positions })
    };
    // Megatron's own width of a gated MLP where none is asked for: 8/3 h, down to a multiple of 64. The rows of its jobs hold 4 h.
    let gated = matches!(style, Style::Llama | Style::LlamaTied | Style::T5Gated);
    let unset = megatron && gated && mlp == "swiglu" && ffn == 4 * hidden;
    let ffn = if unset { 8 * hidden / 3 / 64 * 64 } else { ffn };
    let own_head = flags.has("untie-embeddings-and-output-weights");
    let mut shape = Shape {
        kv_heads,
        head_dim,
        ffn,
        vocab: padded(vocab, flags, stack, row.positive("tp").unwrap_or(1)),
        gated,
        bias: (gpt || megatron) && !flags.has("disable-bias-linear"),
        tied: !own_head && !name.contains("nemotron") && (megatron || !matches!(style, Style::Llama | Style::T5Gated)),
        positions,
        norm_bias: (gpt || megatron || style == Style::Falcon) && !rms,
        causal: !bert,
        dropout: dropout(
            flags,
            &row.words("attention"),
            gpt && !name.contains("mpt") || style == Style::T5 || megatron,
        ),
        ahead: flags.count("mtp-num-layers").unwrap_or(0),
        ..plain(layers, hidden, heads)
    };
    let twice = layers == known.map_or(0, |k| k.layers.0 + k.layers.1);
    if matches!(style, Style::T5 | Style::T5Gated) || decoder_layers.is_some() {
        let (encoder, decoder) = match decoder_layers {
            Some(decoder) => (layers, decoder),
            None if twice || layers % 2 == 0 => (layers / 2, layers / 2),
            None => (layers, layers),
        };
        let decoder_seq = row.pair("seq").map_or(512, |(encoder, decoder)| decoder.unwrap_or(encoder));
        shape.layers = encoder;
        shape.kind = Kind::EncoderDecoder { decoder_layers: decoder, decoder_seq };
    }
    shape.experts = experts(&mlp, flags, known, &shape);
    if let (Some(experts), Some(known)) = (&shape.experts, known) {
        // Where the width given is that of an expert, the dense blocks' is the model's own.
        if experts.ffn == shape.ffn && known.experts.is_some() {
            shape.ffn = known.ffn;
        }
    }
    let latent = flags.has("multi-latent-attention") || any(&mlp, &["mla"]) || known.is_some_and(|k| k.latent);
    shape.latent = latent.then(|| latent_of(flags));
    Ok(shape)
}

fn default_vocab(name: &str, style: Style, bert: bool, assumed: &mut Vec<String>) -> usize {
    let vocab = match style {
        _ if bert => 30522,
        // BertWordPieceCase with a hundred sentinels, as Megatron's T5 has it; T5's own has 32128.
        Style::T5 | Style::T5Gated if name.contains("megatron") => 29_096,
        Style::T5 | Style::T5Gated => 32128,
        Style::Llama | Style::LlamaTied => 32000,
        Style::Gpt | Style::Falcon => 50304,
    };
    assumed.push(format!("a vocabulary of {vocab}"));
    vocab
}

/// Megatron pads the vocabulary to a multiple of 128 (or of what a flag says) for each tensor rank.
fn padded(vocab: usize, flags: &Flags, stack: Stack, tensor: usize) -> usize {
    let megatron = matches!(stack, Stack::MegatronCore | Stack::MegatronLm | Stack::MegatronDeepspeed);
    let of = flags.count("make-vocab-size-divisible-by").filter(|n| *n > 0).unwrap_or(128);
    if megatron { vocab.next_multiple_of(of.saturating_mul(tensor).max(1)) } else { vocab }
}

fn dropout(flags: &Flags, attention: &str, usual: bool) -> bool {
    match flags.number("hidden-dropout") {
        Some(share) => share > 0.0,
        None => usual || attention.contains("dropout"),
    }
}

/// The number before (`8e`) or after (`top2`, `expert-ffn 1024`) a word.
fn number_at(text: &str, word: &str) -> Option<usize> {
    let start = text.find(word)? + word.len();
    let rest = text[start..].trim_start_matches([' ', '=', '-', '_']);
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().filter(|n| *n < 1_000_000_000)
}

fn experts(mlp: &str, flags: &Flags, known: Option<&Known>, shape: &Shape) -> Option<Experts> {
    let named = known.and_then(|k| k.experts);
    let words = mlp.split([' ', ',', '-']);
    let counted = words.clone().find_map(|word| word.strip_suffix('e').and_then(|n| n.parse::<usize>().ok()));
    if !mlp.contains("moe") && named.is_none() && counted.is_none() {
        return None;
    }
    let count = counted.or_else(|| number_at(mlp, "experts")).or(named.map(|n| n.0)).filter(|n| *n > 0)?;
    let top = number_at(mlp, "top").or(named.map(|n| n.1)).unwrap_or(1).clamp(1, count);
    let ffn = number_at(mlp, "expert-ffn").or(named.map(|n| n.2)).unwrap_or(shape.ffn);
    let several = mlp.split('+').nth(1).filter(|rest| rest.contains("shared")).map(|rest| {
        rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<usize>().unwrap_or(1).min(1024)
    });
    let shared_ffn = match (number_at(mlp, "shared"), several, named) {
        (Some(width), _, _) if several.is_none() => width,
        (_, Some(times), _) => times * ffn,
        (_, _, Some(named)) => named.3,
        _ => 0,
    };
    let frequency = flags.text("moe-layer-freq").map(|text| dense_blocks(text, shape.layers));
    let dense_layers = frequency.or(named.map(|n| n.4)).unwrap_or(0).min(shape.layers);
    Some(Experts { count, top, ffn, shared_ffn, dense_layers, imbalance: 1.0 })
}

/// Megatron's defaults for multi-latent attention but for the flags; with none given, DeepSeek-V3's.
fn latent_of(flags: &Flags) -> Latent {
    let core = flags.has("multi-latent-attention");
    let take = |name: &str, usual: usize| flags.count(name).unwrap_or(usual);
    Latent {
        q_rank: take("q-lora-rank", if core { 0 } else { 1536 }),
        kv_rank: take("kv-lora-rank", if core { 32 } else { 512 }),
        qk_dim: take("qk-head-dim", 128),
        rope_dim: take("qk-pos-emb-head-dim", 64),
        v_dim: take("v-head-dim", 128),
    }
}
