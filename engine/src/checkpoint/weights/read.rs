//! Reading elements: slices from their file, or whole tensors as they are stored.

use super::elements::{Decode, decoder};
use super::{Checkpoint, CheckpointError, Result, TensorInfo, unreadable};
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// The most that is read at a time. Larger reads are no faster (docs/loading.md).
const READ_BYTES: usize = 1 << 20;

impl Checkpoint {
    /// Reads elements (of the row-major tensor, seen flat) into `dst`, converted to f32. f32, bf16 and f16 on disk
    /// convert exactly. Bytes go through `buffer`, which grows to what is read at a time.
    ///
    /// # Errors
    /// No such tensor, elements beyond its end, `dst` of another length, a stored type that is none of the three, or a
    /// file that cannot be read.
    pub fn read(&self, name: &str, elements: Range<usize>, dst: &mut [f32], buffer: &mut Vec<u8>) -> Result<()> {
        let (info, decode) = self.slice(name, &elements, dst.len())?;
        let width = info.width();
        let mut position = info.begin + (elements.start * width) as u64;
        let most = READ_BYTES.min(width * dst.len());
        if buffer.len() < most {
            buffer.resize(most, 0);
        }
        for part in dst.chunks_mut(READ_BYTES / width) {
            let bytes = &mut buffer[..part.len() * width];
            self.read_at(name, info, bytes, position)?;
            decode(bytes, part);
            position += bytes.len() as u64;
        }
        Ok(())
    }

    /// A tensor's bytes, as they are stored.
    pub(crate) fn read_stored(&self, name: &str) -> Result<Vec<u8>> {
        let info = self.tensors.get(name).ok_or_else(|| self.refuse(name, "there is no such tensor".into()))?;
        let len = info.bytes();
        let mut bytes = self.room(name, len)?;
        while bytes.len() < len {
            let (done, piece) = (bytes.len(), READ_BYTES.min(len - bytes.len()));
            bytes.resize(done + piece, 0);
            self.read_at(name, info, &mut bytes[done..], info.begin + done as u64)?;
        }
        Ok(bytes)
    }

    /// Reserves host memory for a tensor's bytes.
    pub(crate) fn room(&self, name: &str, len: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let none = |_| {
            let way = "set model.loading = \"sliced\", which needs 2 MiB";
            self.refuse(name, format!("this process gets no {len} bytes of host memory for it; {way}"))
        };
        bytes.try_reserve_exact(len).map_err(none)?;
        Ok(bytes)
    }

    /// As `read`, out of the tensor's stored bytes.
    pub(crate) fn decode(&self, name: &str, stored: &[u8], elements: Range<usize>, dst: &mut [f32]) -> Result<()> {
        let (info, decode) = self.slice(name, &elements, dst.len())?;
        let width = info.width();
        let bytes = stored.get(elements.start * width..elements.end * width);
        decode(bytes.ok_or_else(|| self.refuse(name, format!("{} bytes are held of it", stored.len())))?, dst);
        Ok(())
    }

    /// The tensor of a slice, and the conversion of its elements.
    fn slice(&self, name: &str, elements: &Range<usize>, wanted: usize) -> Result<(&TensorInfo, Decode)> {
        let refuse = |reason: String| self.refuse(name, reason);
        let info = self.tensors.get(name).ok_or_else(|| refuse("there is no such tensor".into()))?;
        if elements.start > elements.end || elements.end > info.elements() {
            return Err(refuse(format!("elements {elements:?} were asked for of {}", info.elements())));
        }
        if elements.len() != wanted {
            return Err(refuse(format!("{} elements were asked for into {wanted}", elements.len())));
        }
        Ok((info, decoder(info.dtype).ok_or_else(|| refuse(unreadable(info.dtype)))?))
    }

    fn read_at(&self, name: &str, info: &TensorInfo, bytes: &mut [u8], position: u64) -> Result<()> {
        let failed = |source: std::io::Error| match source.kind() {
            ErrorKind::UnexpectedEof => CheckpointError::Entry {
                file: info.file.clone(),
                tensor: name.into(),
                reason: "the file has become shorter since it was opened, and ends before the tensor".into(),
            },
            _ => CheckpointError::io("read", &info.file, source),
        };
        self.files[info.index].read_exact_at(bytes, position).map_err(failed)
    }

    fn refuse(&self, name: &str, reason: String) -> CheckpointError {
        CheckpointError::Read { dir: self.dir.clone(), tensor: name.into(), reason }
    }
}
