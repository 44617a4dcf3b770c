//! Boards in damaged memory.

use super::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use zbench_kernels::Arena;

fn world(ranks: usize) -> (Arc<Control>, Board) {
    let control = Control::new(Arena::host(Some(CONTROL_BYTES)).unwrap().region(), ranks).unwrap();
    let board = Board::make(&control, "world", &(0..ranks).collect::<Vec<_>>()).unwrap();
    (control, board)
}

fn assert_refused<T>(result: Result<T>, what: &str) {
    let error = result.err().unwrap_or_else(|| panic!("{what} was taken"));
    assert!(matches!(error, crate::CommError::Invalid { .. }), "{what}: {error}");
}

#[test]
fn offsets_that_lie_nowhere_are_errors() {
    let (control, board) = world(3);
    assert_eq!(Board::at(&control, board.offset()).unwrap().size(), 3);
    for at in [CONTROL_BYTES, CONTROL_BYTES - 128, CONTROL_BYTES - 8, u64::MAX, u64::MAX - 127, board.offset() + 8] {
        assert_refused(Board::at(&control, at), &format!("a board at {at:#x}"));
    }
    // The table of pairs is memory that every rank writes.
    let pair = CallGroup::Pair { from: 0, to: 2 };
    assert_eq!(board.line(pair).unwrap().members(), 2);
    for wild in [CONTROL_BYTES, CONTROL_BYTES - 256, u64::MAX - 255, 12 * 128 + 4] {
        // SAFETY: the table of pairs lies there.
        let pairs: &[AtomicU64] = unsafe { control.slice(board.at + board.pairs_at(), 9) }.unwrap();
        pairs[2].store(wild, Ordering::Relaxed);
        assert_refused(board.line(pair), &format!("the slots of a pair at {wild:#x}"));
    }
}

#[test]
fn sizes_that_cannot_be_are_errors() {
    let (control, board) = world(3);
    for size in [0, 4, u64::from(u32::MAX), u64::MAX] {
        // SAFETY: the head lies there, and nobody else uses this memory.
        unsafe { control.region.base().add(board.at as usize).cast::<Head>().as_mut().size = size };
        assert_refused(Board::at(&control, board.offset()), &format!("a board of {size} ranks"));
    }
    assert!(board.eager(5, 2, EAGER_BYTES).is_ok());
    assert_refused(board.eager(5, 3, 8), "the eager bytes of a rank that is not there");
    assert_refused(board.eager(5, 2, EAGER_BYTES + 1), "more eager bytes than there are");
    control.header().used.store(u64::MAX - 100, Ordering::Relaxed);
    assert_refused(Board::make(&control, "another", &[0, 1]), "a board behind the end");
    let file = memfd_create("small", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, 1024).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    assert_refused(Control::new(Arc::new(Region::open(file, 1024).unwrap()), 2), "a mapping of 1024 bytes");
    let region = Arena::host(Some(CONTROL_BYTES)).unwrap().region();
    assert_refused(Control::new(region, usize::MAX), "as many seats as there are numbers");
}
