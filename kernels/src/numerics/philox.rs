//! Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
//!
//! Element `i` of a tensor draws from a function of (seed, i) alone, so it gets the same value whichever rank or thread
//! draws it. Four neighbouring elements share one block: element `i` is word `i % 4` of block `i / 4`.

/// Which draws a block serves, so that one seed gives unrelated masks and weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RandomStream {
    /// Normal deviates of initialisation.
    Normal = 0,
    Dropout = 1,
    Rounding = 2,
}

/// Ten rounds of Philox4x32 on a counter of four words and a key of two.
#[inline(always)]
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut x0, mut x1, mut x2, mut x3], [mut k0, mut k1]) = (counter, key);
    for _ in 0..10 {
        let (p, q) = (u64::from(x0) * 0xD251_1F53, u64::from(x2) * 0xCD9E_8D57);
        (x0, x1, x2, x3) = ((q >> 32) as u32 ^ x1 ^ k0, q as u32, (p >> 32) as u32 ^ x3 ^ k1, p as u32);
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    [x0, x1, x2, x3]
}

/// The four words of block `block`: uniform over all 32-bit numbers.
#[inline(always)]
pub fn words(seed: u64, stream: RandomStream, block: u64) -> [u32; 4] {
    philox4x32([block as u32, (block >> 32) as u32, 0, stream as u32], [seed as u32, (seed >> 32) as u32])
}

/// The same for draws that are made anew in every step.
#[inline(always)]
pub fn words_of_step(seed: u64, stream: RandomStream, step: u64, block: u64) -> [u32; 4] {
    let counter = [block as u32, (block >> 32) as u32, step as u32, stream as u32];
    philox4x32(counter, [seed as u32, (seed >> 32) as u32 ^ (step >> 32) as u32])
}

/// The four standard normal deviates of block `block`: Box-Muller on words (0, 1) and (2, 3), in f64, rounded once.
pub fn normals(seed: u64, block: u64) -> [f32; 4] {
    let [a, b, c, d] = words(seed, RandomStream::Normal, block);
    let pair = |u: u32, v: u32| {
        let radius = (-2.0 * ((f64::from(u) + 1.0) * 2f64.powi(-32)).ln()).sqrt();
        let (sin, cos) = (f64::from(v) * 2f64.powi(-32) * std::f64::consts::TAU).sin_cos();
        ((radius * cos) as f32, (radius * sin) as f32)
    };
    let ((n0, n1), (n2, n3)) = (pair(a, b), pair(c, d));
    [n0, n1, n2, n3]
}

/// The word below which a draw is dropped, for a chance `p` in `[0, 1)`.
pub fn threshold(p: f64) -> u64 {
    (p * 2f64.powi(32)).round() as u64
}

/// Calls `visit(i, value)` for each `i < len`, where value is word `(first + i) % 4` of what `block` gives.
#[inline(always)]
pub fn each<T: Copy>(first: u64, len: usize, block: impl Fn(u64) -> [T; 4], mut visit: impl FnMut(usize, T)) {
    let mut i = 0;
    while i < len {
        let at = first.wrapping_add(i as u64);
        let four = block(at / 4);
        for value in four.into_iter().skip((at % 4) as usize).take(len - i) {
            visit(i, value);
            i += 1;
        }
    }
}

/// Blocks that are drawn side by side.
const ABREAST: usize = 16;

/// The words of elements `first` and on: word `(first + i) % 4` of block `(first + i) / 4`, as [`words_of_step`] has it
/// ([`words`] where `step` is 0). In loops over blocks, so that vectors draw many at a time.
#[inline(always)]
pub(crate) fn stretch(seed: u64, stream: RandomStream, step: u64, first: u64, out: &mut [u32]) {
    let (mut skip, mut block, mut done) = ((first % 4) as usize, first / 4, 0);
    while done < out.len() {
        let mut lanes = [[0u32; ABREAST]; 4];
        for i in 0..ABREAST {
            // The last block of all numbers is followed by the first.
            let four = words_of_step(seed, stream, step, block.wrapping_add(i as u64) & (u64::MAX / 4));
            for (lane, word) in lanes.iter_mut().zip(four) {
                lane[i] = word;
            }
        }
        let mut drawn = [0u32; 4 * ABREAST];
        for i in 0..ABREAST {
            for k in 0..4 {
                drawn[4 * i + k] = lanes[k][i];
            }
        }
        let take = (4 * ABREAST - skip).min(out.len() - done);
        out[done..done + take].copy_from_slice(&drawn[skip..skip + take]);
        (skip, block, done) = (0, block.wrapping_add(ABREAST as u64), done + take);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers_of_random123() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(philox4x32([u32::MAX; 4], [u32::MAX; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        let pi = [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344];
        let answer = [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1];
        assert_eq!(philox4x32(pi, [0xa4093822, 0x299f31d0]), answer);
    }

    #[test]
    fn each_gives_an_index_its_own_word() {
        let mut whole = [0; 23];
        each(5, 23, |b| words(9, RandomStream::Dropout, b), |i, w| whole[i] = w);
        for start in 0..23 {
            each(
                5 + start as u64,
                23 - start,
                |b| words(9, RandomStream::Dropout, b),
                |i, w| assert_eq!(w, whole[start + i]),
            );
        }
    }

    #[test]
    fn a_stretch_is_what_each_element_draws() {
        for first in [0, 5, 63, 64, u64::MAX - 70, u64::MAX] {
            for len in [0, 1, 3, 61, 64, 65, 300] {
                let mut out = vec![7; len];
                stretch(9, RandomStream::Rounding, 1 << 40 | 3, first, &mut out);
                each(
                    first,
                    len,
                    |b| words_of_step(9, RandomStream::Rounding, 1 << 40 | 3, b),
                    |i, w| assert_eq!(out[i], w),
                );
                stretch(9, RandomStream::Dropout, 0, first, &mut out);
                each(
                    first,
                    len,
                    |b| words(9, RandomStream::Dropout, b),
                    |i, w| assert_eq!(out[i], w, "{first} {len} {i}"),
                );
            }
        }
    }

    #[test]
    fn normals_have_mean_zero_and_variance_one() {
        let n = 50_000;
        let draws: Vec<f64> = (0..n / 4).flat_map(|b| normals(1, b)).map(f64::from).collect();
        let mean = draws.iter().sum::<f64>() / n as f64;
        let variance = draws.iter().map(|x| x * x).sum::<f64>() / n as f64;
        // Five standard errors: 5/sqrt(n) and 5 sqrt(2/n).
        assert!(mean.abs() < 0.0224 && (variance - 1.0).abs() < 0.0317, "{mean} {variance}");
    }
}
