use super::*;

fn operations(ranks: usize, factor: f64) -> Operations {
    let mut curves = Curves::default();
    for (class, sizes, us) in [
        ("gemm nt bf16-bf16-f32", &[128.0, 256.0, 64.0][..], 31.25),
        ("gemm nt bf16-bf16-f32", &[1024.0, 1024.0, 1024.0][..], 20480.5),
        ("fill f32", &[4096.0][..], 0.75),
    ] {
        curves.add(class, Point { sizes: sizes.to_vec(), seconds: us * 1e-6 * factor });
    }
    let overheads =
        Overheads { operation: 5e-7, load: 2e-6, step: 1.25e-5, call: 7.5e-5, all_reduce: 1.5e-4, tensor: 2.5e-5 };
    Operations { layout: RankLayout { ranks, threads: 1, crowded: ranks > 2 }, curves, overheads, spread: 0.125 }
}

/// Times are written with four digits.
fn same(a: &[Operations], b: &[Operations]) -> bool {
    let near = |x: f64, y: f64| (x - y).abs() <= 1e-3 * y;
    let points = |of: &Operations| -> Vec<(String, Point)> {
        of.curves
            .classes()
            .flat_map(|(name, points)| points.iter().map(move |p| (name.to_string(), p.clone())))
            .collect()
    };
    let one = |a: &Operations, b: &Operations| {
        let (p, q) = (points(a), points(b));
        let together =
            p.iter().zip(&q).all(|((n, x), (m, y))| n == m && x.sizes == y.sizes && near(x.seconds, y.seconds));
        let beside = near(a.overheads.operation, b.overheads.operation)
            && near(a.overheads.call, b.overheads.call)
            && near(a.overheads.all_reduce, b.overheads.all_reduce)
            && near(a.overheads.load, b.overheads.load)
            && near(a.overheads.step, b.overheads.step);
        a.layout == b.layout && p.len() == q.len() && together && beside && (a.spread - b.spread).abs() < 1e-3
    };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| one(a, b))
}

#[test]
fn what_is_saved_is_read_back_and_replaces_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.toml");
    let mine = "# mine\nabout = \"x\" # keep\ndevice = \"cpu\"\n\n[ceilings.threads-1]\nmatrix = {}\n";
    std::fs::write(&path, mine).unwrap();
    let read = || of_text(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert!(read().is_empty());
    let first = [operations(2, 1.0), operations(4, 2.0)];
    save(&path, &first, "today", 2).unwrap();
    assert!(same(&read(), &first), "{:?}", read());
    let second = [operations(2, 3.0)];
    save(&path, &second, "tomorrow", 2).unwrap();
    let [_, crowded] = first;
    assert!(same(&read(), &[second[0].clone(), crowded]), "{:?}", read());
    let after = std::fs::read_to_string(&path).unwrap();
    assert!(after.starts_with(mine) && after.contains("cores = 2") && !after.contains("today"), "{after}");
}

#[test]
fn what_is_written_otherwise_is_told_with_its_place() {
    for (text, place) in [
        ("operations = 3", "operations"),
        ("[operations.ranks-many]", "operations.ranks-many"),
        ("[operations]\nranks-2 = 3", "operations.ranks-2"),
        ("[operations.ranks-2.threads-x]", "operations.ranks-2.threads-x"),
        ("[operations.ranks-2.threads-1]\ncrowded = false", "operations.ranks-2.threads-1"),
        (
            "[operations.ranks-2.threads-1]\ncrowded = false\nspread = 0\noperation_us = 1\nload_us = 1\nstep_us = 1\ncall_us = 1\nall_reduce_us = 1\n\
             curves = [{ of = \"x\", points = [[\"a\"]] }]",
            "operations.ranks-2.threads-1",
        ),
    ] {
        let reason = of_text(text).unwrap_err();
        assert!(reason.contains(place) && reason.contains("calibrate"), "{text}: {reason}");
    }
}
