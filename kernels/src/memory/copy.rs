//! A copy that goes past the caches, for buffers that the copying core will not read again.

#![allow(unsafe_code, reason = "vector stores past the cache, by address")]

use crate::{KernelError, Result, View, ViewMut};

/// Copies `src` to `dst`: one element type, equal lengths. On x86-64 the stores are non-temporal (AVX-512 or AVX2, whole
/// lines of `dst`), so that no line is read before it is written and none is pushed out of the caches; elsewhere, and for
/// the incomplete lines at both ends, it is a plain copy. On return everything is written before whatever this thread
/// stores next, so a flag may follow as after any other copy.
pub fn stream(src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
    alike("stream", &src, &dst)?;
    src.expect_on_host().and(dst.expect_on_host())?;
    let bytes = src.len() * src.dtype().size();
    // SAFETY: both views hold that many bytes, and one that may be written overlaps no other.
    unsafe { bypass(src.ptr().as_ptr(), dst.ptr().as_ptr(), bytes) };
    Ok(())
}

/// Copies `src` to `dst` on the host: one element type, equal lengths.
pub(crate) fn plain(op: &'static str, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
    alike(op, &src, &dst)?;
    dst.into_bytes_mut()?.copy_from_slice(src.as_bytes()?);
    Ok(())
}

/// One type and equal lengths, and neither in a file.
pub(crate) fn alike(op: &'static str, src: &View<'_>, dst: &ViewMut<'_>) -> Result<()> {
    if src.is_in_file() || dst.is_in_file() {
        return Err(KernelError::InFile);
    }
    if src.dtype() != dst.dtype() {
        return Err(KernelError::DType { wanted: dst.dtype(), given: src.dtype() });
    }
    if src.len() != dst.len() {
        return Err(KernelError::Shape { op, operand: "src", wanted: dst.len(), given: src.len() });
    }
    Ok(())
}

/// # Safety
/// `src` may be read and `dst` written for `bytes`, and they do not overlap.
unsafe fn bypass(src: *const u8, dst: *mut u8, bytes: usize) {
    // SAFETY: the feature that a copy needs is there; the rest is as the caller says.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            return machine::avx512(src, dst, bytes);
        } else if is_x86_feature_detected!("avx2") {
            return machine::avx2(src, dst, bytes);
        }
        std::ptr::copy_nonoverlapping(src, dst, bytes)
    }
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use std::arch::x86_64::*;

    const LINE: usize = 64;

    /// Copies head and tail plainly and says where the whole lines of `dst` begin and end.
    ///
    /// # Safety
    /// As [`super::bypass`].
    #[inline(always)]
    unsafe fn ends(src: *const u8, dst: *mut u8, bytes: usize) -> std::ops::Range<usize> {
        let head = dst.align_offset(LINE).min(bytes);
        let tail = head + (bytes - head) / LINE * LINE;
        // SAFETY: both parts lie inside the buffers.
        unsafe {
            std::ptr::copy_nonoverlapping(src, dst, head);
            std::ptr::copy_nonoverlapping(src.add(tail), dst.add(tail), bytes - tail);
        }
        head..tail
    }

    /// # Safety
    /// As [`super::bypass`].
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512(src: *const u8, dst: *mut u8, bytes: usize) {
        // SAFETY: as the caller says; every line of `dst` is whole and aligned. The fence ends what the model of memory
        // knows nothing of: stores that overtake others.
        unsafe {
            for at in ends(src, dst, bytes).step_by(LINE) {
                _mm512_stream_si512(dst.add(at).cast(), _mm512_loadu_si512(src.add(at).cast()));
            }
            _mm_sfence();
        }
    }

    /// # Safety
    /// As [`super::bypass`].
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn avx2(src: *const u8, dst: *mut u8, bytes: usize) {
        // SAFETY: as above.
        unsafe {
            for at in ends(src, dst, bytes).step_by(LINE) {
                let (low, high) = (_mm256_loadu_si256(src.add(at).cast()), _mm256_loadu_si256(src.add(at + 32).cast()));
                _mm256_stream_si256(dst.add(at).cast(), low);
                _mm256_stream_si256(dst.add(at + 32).cast(), high);
            }
            _mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numerics::philox;

    type Copy = unsafe fn(*const u8, *mut u8, usize);

    /// What `bypass` may choose on this machine.
    fn copies() -> Vec<(&'static str, Copy)> {
        let mut all: Vec<(&str, Copy)> = vec![("chosen", bypass)];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                // SAFETY: the feature is there; the rest is asked of whoever calls.
                all.push(("avx512", |src, dst, bytes| unsafe { machine::avx512(src, dst, bytes) }));
            }
            if is_x86_feature_detected!("avx2") {
                // SAFETY: as above.
                all.push(("avx2", |src, dst, bytes| unsafe { machine::avx2(src, dst, bytes) }));
            }
        }
        all
    }

    fn random(bytes: usize) -> Vec<i8> {
        let words = (0..bytes.div_ceil(16) as u64).flat_map(|i| philox::words(9, philox::RandomStream::Dropout, i));
        words.flat_map(u32::to_ne_bytes).take(bytes).map(|byte| byte as i8).collect()
    }

    #[test]
    fn every_alignment_and_length_is_copied_and_nothing_else_touched() {
        let source = random(64 + 1000);
        for (name, copy) in copies() {
            for from in [0, 1, 17, 63] {
                for to in 0..64 {
                    for len in (0..200).chain([255, 256, 257, 512, 999]) {
                        let mut target = vec![0x5a_i8; 64 + 1064];
                        // SAFETY: both buffers are longer than what is asked for.
                        unsafe { copy(source[from..].as_ptr().cast(), target[to..].as_mut_ptr().cast(), len) };
                        let case = format!("{name}: {len} bytes from {from} to {to}");
                        assert_eq!(target[to..to + len], source[from..from + len], "{case}");
                        assert!(target[..to].iter().chain(&target[to + len..]).all(|byte| *byte == 0x5a), "{case}");
                    }
                }
            }
        }
    }

    #[test]
    fn types_and_lengths_must_agree() {
        let source = random(100_000);
        let mut target = vec![0i8; 100_000];
        stream(View::of(&source), ViewMut::of(&mut target)).unwrap();
        assert_eq!(source, target);
        let error = stream(View::of(&source[1..]), ViewMut::of(&mut target)).unwrap_err();
        assert_eq!(error, KernelError::Shape { op: "stream", operand: "src", wanted: 100_000, given: 99_999 });
        let error = stream(View::of(&[1.0f32]), ViewMut::of(&mut [0u32])).unwrap_err();
        assert_eq!(error, KernelError::DType { wanted: crate::DType::U32, given: crate::DType::F32 });
    }
}
