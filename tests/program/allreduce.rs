//! `zbench allreduce`, the program itself: its table parsed back, its JSON, CSV, exit codes, records and faults.

use crate::support::{TINY, records, run, signal, stderr, stdout, write, zbench};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Output, Stdio};

/// Without buffers larger than the caches, which take seconds to fill in a program that is not optimised.
fn test(notebook: &Path, words: &str) -> Output {
    let words: Vec<&str> = ["allreduce", "--buffers", "hot"].into_iter().chain(words.split_whitespace()).collect();
    run(notebook, &words)
}

fn succeeds(notebook: &Path, words: &str) -> String {
    let output = test(notebook, words);
    assert_eq!(output.status.code(), Some(0), "{words}: {}{}", stdout(&output), stderr(&output));
    stdout(&output)
}

/// The rows as what reads nccl-tests' output finds them: lines without `#`, columns between spaces.
fn rows(text: &str) -> Vec<Vec<String>> {
    let is_row = |line: &&str| !line.starts_with('#') && !line.trim().is_empty();
    text.lines().filter(is_row).map(|line| line.split_whitespace().map(str::to_string).collect()).collect()
}

fn number(text: &str) -> f64 {
    text.parse().unwrap_or_else(|_| panic!("`{text}` is no number"))
}

#[test]
fn the_table_is_that_of_nccl_tests() {
    let folder = tempfile::tempdir().unwrap();
    for (ranks, factor) in [(2, 1.0), (3, 4.0 / 3.0), (4, 1.5)] {
        let text = succeeds(folder.path(), &format!("--ranks {ranks} -b 64K -e 1M -f 4 -n 3"));
        let first = text.lines().next().unwrap();
        let world = format!("backend local, {ranks} ranks on 1 host (threads of one process");
        assert!(first.starts_with("# zbench ") && first.contains(&world), "{first}");
        for line in [
            "# Collective test starting: all_reduce",
            "#                                                              out-of-place                       in-place          ",
            "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong ",
            "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         ",
            "# Out of bounds values : 0 OK",
            "# Collective test concluded: all_reduce",
        ] {
            assert!(text.lines().any(|found| found.trim_end() == line.trim_end()), "{line:?} in\n{text}");
        }
        assert!(text.contains("minBytes 65536 maxBytes 1048576 step: 4(factor) warmup iters: 1 iters: 3 agg iters: 1 validation: 1 graph: 0"));
        assert_eq!(text.matches("#  Rank ").count(), ranks, "{text}");
        let rows = rows(&text);
        assert_eq!(rows.iter().map(|row| number(&row[0]) as u64).collect::<Vec<_>>(), [65536, 262144, 1048576]);
        for row in &rows {
            assert_eq!(row.len(), 13, "{row:?}");
            assert_eq!(number(&row[0]), 4.0 * number(&row[1]));
            assert_eq!([&row[2], &row[3], &row[4]], ["float", "sum", "-1"]);
            for side in [&row[5..9], &row[9..13]] {
                let [time, algbw, busbw] = [0, 1, 2].map(|i| number(&side[i]));
                // Numbers have two decimals: half a hundredth of each may be lost.
                assert!((algbw - number(&row[0]) / time / 1e3).abs() <= 0.005 + 0.01 * algbw, "{row:?}");
                assert!((busbw - factor * algbw).abs() <= 0.005 + 0.005 * factor, "{row:?}");
                assert_eq!(side[3], "0");
            }
        }
        let line = text.lines().find(|line| !line.starts_with('#')).unwrap();
        assert_eq!((&line[..12], &line[12..14], line.len()), ("       65536", "  ", 118), "{line:?}");
        let sides = || rows.iter().flat_map(|row| [number(&row[7]), number(&row[11])]);
        let mean = sides().sum::<f64>() / sides().count() as f64;
        let average = text.lines().find_map(|line| line.strip_prefix("# Avg bus bandwidth    : ")).unwrap();
        assert!((number(average.trim()) - mean).abs() <= 0.006, "{average} {mean}");
    }
}

#[test]
fn iterations_timestamps_and_cpu_time_have_their_columns() {
    let folder = tempfile::tempdir().unwrap();
    let text = succeeds(folder.path(), "-b 1K -e 1K -n 4 -I 1 -S 1 -C 1");
    assert!(text.contains("cputime") && text.contains("i_cv%") && text.contains("timestamp"), "{text}");
    assert!(text.contains("each started by a barrier"), "the header says how it was timed");
    let rows = rows(&text);
    // Five columns, two sides of eight, a date and a time.
    assert_eq!(rows[0].len(), 5 + 16 + 2, "{rows:?}");
    for side in [&rows[0][5..13], &rows[0][13..21]] {
        assert!(number(&side[4]) <= number(&side[5]) && number(&side[6]) <= number(&side[5]), "{side:?}");
    }
}

#[test]
fn all_collectives_types_and_reductions_run_and_are_right() {
    let folder = tempfile::tempdir().unwrap();
    let words = "--collective all -d all -o all -r -1 --ranks 3 -b 0 -e 606 -i 303 -n 1 -w 0";
    let rows = rows(&succeeds(folder.path(), words));
    // Reducing ones have five reductions, rooted ones three roots; six types, three sizes.
    assert_eq!(rows.len(), 6 * 3 * (5 * (2 + 3) + 3 * 3 + 3));
    for row in &rows {
        assert_eq!(row[8], "0", "{row:?}");
        assert!(row[12] == "0" || row[12] == "N/A" && row[4] == "-1", "{row:?}");
    }
    let types: std::collections::BTreeSet<&str> = rows.iter().map(|row| row[2].as_str()).collect();
    assert_eq!(types.into_iter().collect::<Vec<_>>(), ["bfloat16", "double", "float", "half", "int32", "int8"]);
    let all = records(folder.path());
    assert_eq!(all.len(), 9);
    assert!(all.iter().all(|record| record["outcome"]["status"] == "measured"));
    for command in
        [&["list"][..], &["report", "--full"], &["report", "--format", "csv"], &["report", "collective=broadcast"]]
    {
        let output = run(folder.path(), command);
        assert_eq!(output.status.code(), Some(0), "{command:?}: {}", stderr(&output));
        assert!(stdout(&output).contains("broadcast"), "{command:?}: {}", stdout(&output));
    }
    let short = stdout(&run(folder.path(), &["report"]));
    assert!(short.lines().count() <= 40 && short.contains("--full has the rest"), "{short}");
    let id = all[0]["id"].as_str().unwrap();
    assert_eq!(run(folder.path(), &["show", id]).status.code(), Some(0));
    let again = run(folder.path(), &["repro", id]);
    assert_eq!(again.status.code(), Some(0), "{}", stderr(&again));
    let repeated = records(folder.path());
    assert_eq!(repeated.len(), 10, "of nine collectives one is repeated");
    assert_eq!((&repeated[9]["cell"], &repeated[9]["key"]), (&repeated[0]["cell"], &repeated[0]["key"]));
}

#[test]
fn json_is_one_document_of_nccl_tests_third_version() {
    let folder = tempfile::tempdir().unwrap();
    let words = "--format json --collective all_gather,reduce -r 1 -d half -b 64 -e 512 -n 3 -I 1 --ranks 4";
    let text = succeeds(folder.path(), words);
    assert_eq!(text.lines().count(), 1);
    let document: Value = serde_json::from_str(&text).unwrap();
    let keys: Vec<&str> = document.as_object().unwrap().keys().map(String::as_str).collect();
    let theirs = [
        "version",
        "start_time",
        "args",
        "env",
        "nccl_version",
        "config",
        "devices",
        "results",
        "out_of_bounds",
        "average_bus_bandwidth",
        "errors",
        "end_time",
    ];
    assert_eq!(keys[..theirs.len()], theirs);
    assert_eq!(document["version"], 3);
    assert_eq!(document["config"]["iterations"], 3);
    assert_eq!(document["config"]["per_iter_timing"], "true");
    assert_eq!(document["devices"].as_array().unwrap().len(), 4);
    assert_eq!(document["devices"], document["config"]["devices"]);
    assert_eq!(document["out_of_bounds"], serde_json::json!({ "count": 0, "okay": "true" }));
    assert_eq!(document["average_bus_bandwidth"]["okay"], "unchecked");
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 8);
    for (place, result) in results.iter().enumerate() {
        let (name, factor, root) = if place < 4 { ("all_gather", 0.75, -1) } else { ("reduce", 1.0, 1) };
        assert_eq!((result["experiment_name"].as_str(), result["root"].as_i64()), (Some(name), Some(root)));
        assert_eq!((result["type"].as_str(), result["actual_iterations"].as_u64()), (Some("half"), Some(3)));
        let (size, count) = (result["size"].as_f64().unwrap(), result["count"].as_f64().unwrap());
        assert_eq!(size, count * 2.0 * if place < 4 { 4.0 } else { 1.0 });
        for side in ["out_of_place", "in_place"] {
            let [time, algbw, busbw] = ["time", "alg_bw", "bus_bw"].map(|key| result[side][key].as_f64().unwrap());
            assert!((algbw - size / time / 1e3).abs() < 1e-9 && (busbw - factor * algbw).abs() < 1e-9);
            assert_eq!(result[side]["nwrong"], 0);
            let each = &result[format!("{side}_per_iter").as_str()];
            assert_eq!((each["times_us"].as_array().unwrap().len(), &each["p50_us"]), (3, &result[side]["time"]));
            assert_eq!(each["per_process_max_times_us"].as_array().unwrap().len(), 4);
            for key in ["min_us", "max_us", "avg_us", "p95_us", "p99_us", "stdev_us", "cv_pct"] {
                assert!(each[key].is_f64(), "{key}");
            }
        }
    }
}

#[test]
fn csv_and_a_json_file_hold_the_same_rows() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out.json");
    let words = format!("--format csv -b 64 -e 256 -n 2 -J {}", file.display());
    let text = succeeds(folder.path(), &words);
    let table: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
    assert!(table[0].starts_with("table,collective,size (B),count (elements),type,redop,root,out-of-place time (us)"));
    assert_eq!(table.len(), 4);
    assert!(table[1].starts_with("collectives,all_reduce,64,16,float,sum,-1,"), "{}", table[1]);
    let document: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(document["results"].as_array().unwrap().len(), 3);
    // An existing file is kept.
    succeeds(folder.path(), &words);
    assert!(folder.path().join("out.json.0").exists());
}

#[test]
fn what_has_no_meaning_is_said_and_what_is_wrong_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let output = test(folder.path(), "-b 64 -e 64 -n 1 -G 4 -R 1 -y 0 -p 1 -x 1 -D 1 -V 16");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("-G (CUDA graphs) has no meaning for backend local; ignored"), "{said}");
    assert_eq!(said.lines().filter(|line| line.ends_with("; ignored")).count(), 6, "{said}");
    for (words, told) in [
        ("-b 2M -e 1M", "is above -e"),
        ("-r 7 --collective broadcast", "-r 7 is not one of the 2 ranks"),
        ("-d fp8", "this version has int8"),
        ("--backend carrier-pigeon", "carrier-pigeon"),
        ("--backend mpi", "mpirun"),
        ("--ranks 3 -g 2", "give one of them"),
        ("--expect abacus", "there are A100-SXM"),
        ("-n none", "none"),
    ] {
        let output = test(folder.path(), words);
        assert_eq!(output.status.code(), Some(1), "{words}: {}", stderr(&output));
        assert!(stderr(&output).contains(told), "{words}: {}", stderr(&output));
    }
    assert_eq!(rows(&succeeds(folder.path(), "-b 64 -e 64 -n 1 -t 2 -g 2"))[0].len(), 13);
}

#[test]
fn a_bandwidth_that_is_expected_decides_the_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let with = |bandwidth: &str| {
        let mut command = zbench(folder.path());
        command
            .args(["allreduce", "--buffers", "hot", "-b", "1M", "-e", "1M", "-n", "2"])
            .env("NCCL_TESTS_MIN_BW", bandwidth);
        command.output().unwrap()
    };
    let slow = with("1e9");
    assert_eq!(slow.status.code(), Some(2));
    assert!(stdout(&slow).lines().any(|line| line.starts_with("# Avg bus bandwidth") && line.ends_with("FAILED")));
    assert_eq!(with("1e-9").status.code(), Some(0));
    assert_eq!(with("fast").status.code(), Some(1));
}

#[test]
fn published_figures_are_listed_and_compared_with() {
    let folder = tempfile::tempdir().unwrap();
    let list = succeeds(folder.path(), "--expect list");
    assert!(list.contains("H100-SXM") && list.contains("81.6 %") && list.contains("ML Engineering"), "{list}");
    assert_eq!(records(folder.path()).len(), 0);
    let text = succeeds(folder.path(), "-b 64K -e 64K -n 2 --expect h200-sxm");
    assert!(text.contains("of the published 367 GB/s") && text.contains("of the link's 450 GB/s one way"), "{text}");
}

#[test]
fn fits_are_saved_into_a_profile_that_plans_can_read() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("machines")).unwrap();
    let profile = folder.path().join("machines/mine.toml");
    std::fs::write(&profile, "about = \"mine\" # a remark\ndevice = \"cpu\"\nmemory = \"64GiB\"\n").unwrap();
    let words = format!("-b 1K -e 1M -f 4 -n 3 --save={}", profile.display());
    let text = succeeds(folder.path(), &words);
    assert!(text.contains("# Fit of all_reduce float sum in place: time = latency + size / bandwidth"), "{text}");
    let text = std::fs::read_to_string(&profile).unwrap();
    assert!(text.starts_with("about = \"mine\" # a remark\n"));
    let table: toml::Table = text.parse().unwrap();
    let fits = table["collectives"]["local"]["ranks-2"]["all_reduce"]["fits"].as_array().unwrap();
    assert_eq!(fits.len(), 2);
    assert!(fits[0]["segments"][0]["latency_us"].as_float().unwrap() >= 0.0);
    let path = write(
        folder.path(),
        &format!("{TINY}[[grid.exclude]]\n\"parallel.strategy\" = \"ddp\"\n")
            .replace("[hardware]", "[hardware]\nprofile = \"mine\""),
    );
    let output = run(folder.path(), &["plan", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn every_pair_is_measured_and_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let text = succeeds(folder.path(), "--collective pairs --ranks 3 -e 64K -n 3");
    assert!(text.contains("# Pairs: GB/s each way of 64.0 KiB") && text.contains("# Verdict: "), "{text}");
    let all = records(folder.path());
    assert_eq!((all.len(), all[0]["cell"]["collective"].as_str()), (1, Some("pairs")));
    let matrix = all[0]["pairs"]["gb_s"].as_array().unwrap();
    assert!(matrix.len() == 3 && matrix.iter().all(|line| line.as_array().unwrap().len() == 3));
    assert!(matrix[0][0].is_null() && matrix[0][1].as_f64().unwrap() > 0.0 && matrix[0][1] == matrix[1][0]);
    assert_eq!(test(folder.path(), "--collective pairs --ranks 1").status.code(), Some(1));
}

/// Ctrl-C ends between rows; the rows before it are printed and recorded.
#[test]
fn an_interrupted_test_keeps_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = zbench(folder.path());
    command.args(["allreduce", "--buffers", "hot", "-b", "1K", "-e", "1K", "-N", "0", "-n", "5"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut seen = 0;
    while seen < 3 {
        seen += usize::from(!lines.next().expect("rows come as they are measured").unwrap().starts_with('#'));
    }
    signal(child.id(), Signal::INT);
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let rows = 3 + rest.iter().filter(|line| !line.starts_with('#')).count();
    assert!(rest.iter().any(|line| line.starts_with("# Out of bounds values : 0 OK")), "{rest:?}");
    let all = records(folder.path());
    assert_eq!((all.len(), all[0]["section"]["rows"].as_array().unwrap().len()), (1, rows));
    assert!(all[0]["outcome"]["reason"].as_str().unwrap().contains("Ctrl-C"));
}

/// As docs/notebook.md promises. Root may write into any folder, so that what may not be written is no file here.
#[test]
fn a_notebook_that_may_not_be_written_is_refused_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("records.jsonl")).unwrap();
    for backend in ["local", "tcp"] {
        let arguments = ["allreduce", "--backend", backend, "-b", "8", "-e", "8", "-n", "1"];
        let output = crate::support::run(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(1), "{backend}");
        assert_eq!(crate::support::stdout(&output), "", "{backend}: nothing was measured");
        let said = crate::support::stderr(&output);
        assert!(said.contains("nothing was run") && said.contains("--notebook DIR"), "{backend}: {said}");
        assert!(!said.contains("rank"), "{backend}: said once, and by no rank: {said}");
    }
}
