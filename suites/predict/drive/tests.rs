use super::*;
use zbench_config::profile::drives::DriveRate;
use zbench_kernels::Category;

/// 1 MB in a millisecond from the drive and in two to it; larger ones in proportion.
fn rates(folder: &Path) -> DriveRates {
    let rate = DriveRate { bytes: 1_000_000, read: 1e9, write: 0.5e9 };
    DriveRates { folder: folder.into(), measured: "today".into(), rates: vec![rate] }
}

fn moved(to: MemoryTier, moves: f64, bytes: f64) -> Transfer {
    let (from, what) = (if to == MemoryTier::Disk { MemoryTier::Host } else { MemoryTier::Disk }, Category::Optimizer);
    Transfer { what, from, to, moves, bytes }
}

#[test]
fn ranks_share_what_one_file_reached() {
    for ranks in [1, 2, 5] {
        let drive = Drive::shared(&rates(Path::new("/x")), ranks).unwrap();
        let ms = |to, bytes| drive.time(to, bytes).unwrap().busy * 1e3 / ranks as f64;
        let near = |value: f64, wanted: f64| assert!((value / wanted - 1.0).abs() < 1e-12, "{value} {wanted}");
        near(ms(MemoryTier::Host, 1_000_000), 1.0);
        near(ms(MemoryTier::Disk, 1_000_000), 2.0);
        near(ms(MemoryTier::Disk, 3_000_000), 6.0);
        let time = drive.time(MemoryTier::Disk, 3_000_000).unwrap();
        assert_eq!(time.alone, time.busy);
        // All ranks together: 2 MB read and 2 MB written in 2 + 4 ms of one file's time.
        let mix = [moved(MemoryTier::Host, 2.0, 2e6), moved(MemoryTier::Disk, 1.0, 2e6)];
        near(drive.ceiling(&mix).unwrap(), 4e6 / 6e-3);
        let down = Transfer { from: MemoryTier::Device, ..moved(MemoryTier::Host, 3.0, 9e9) };
        near(drive.ceiling(&[mix[0].clone(), down.clone()]).unwrap(), 1e9);
        assert_eq!((drive.ceiling(&[down]), drive.ceiling(&[])), (None, None));
    }
    let none = DriveRates { rates: Vec::new(), ..rates(Path::new("/x")) };
    assert!(Drive::shared(&none, 1).unwrap_err().contains("/x"));
}

#[test]
fn a_folder_has_the_rates_of_its_own_or_of_its_file_system() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    [&a, &b].iter().for_each(|path| std::fs::create_dir(path).unwrap());
    let [of_a, of_b, of_proc] = [&a, &b, &PathBuf::from("/proc")].map(|path| rates(path));
    let found = |all: &[DriveRates], folder: &Path| of_folder(all, folder).map(|rates| rates.folder.clone());
    let all = [of_proc.clone(), of_b.clone(), of_a];
    assert_eq!(found(&all, &a), Some(a.clone()));
    assert_eq!(found(&all[..2], &a), Some(b));
    assert_eq!(found(&all[..1], &a), None);
    assert_eq!(found(&all, &folder.path().join("missing")), None);
}

#[test]
fn a_drive_is_measured_once_and_nothing_is_left_there() {
    let folder = tempfile::tempdir().unwrap();
    assert!(known(folder.path(), 2).unwrap_err().contains("zbench io --dir"));
    let drive = measured(folder.path(), 2).unwrap();
    for to in [MemoryTier::Host, MemoryTier::Disk] {
        for bytes in [4096, 1 << 30] {
            let time = drive.time(to, bytes).unwrap();
            assert!(time.busy > 0.0 && time.alone >= time.busy, "{time:?}");
        }
    }
    assert!(drive.ceiling(&[moved(MemoryTier::Host, 1.0, 1e6)]).unwrap() > 0.0);
    for part in [&folder.path().display().to_string(), "2 files", "GB/s read"] {
        assert!(drive.source().contains(part), "{}", drive.source());
    }
    assert!(Arc::ptr_eq(&drive, &measured(folder.path(), 2).unwrap()), "not twice");
    assert_eq!(known(folder.path(), 2), Ok(drive));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let reason = measured(&folder.path().join("missing"), 2).unwrap_err();
    assert!(reason.contains("memory.offload_path") && reason.contains("missing"), "{reason}");
}
