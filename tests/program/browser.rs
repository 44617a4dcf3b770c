//! The page in a real browser: Chromium, headless, in light, in dark and as wide as a phone. Part of the full run alone
//! (ZBENCH_TESTS=full), which fails where there is no Chromium.

use crate::support::{self, TINY, pixels};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use zbench_test_tiers as tiers;

const PATIENCE: Duration = Duration::from_secs(120);

pub fn browser() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let named = std::env::var_os("ZBENCH_BROWSER").map(PathBuf::from);
    let candidates = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    let found = std::env::split_paths(&paths).flat_map(|folder| candidates.map(|name| folder.join(name)));
    named.into_iter().chain(found).find(|path| path.is_file())
}

/// The browser without a window, a profile of its own.
pub fn headless(browser: &Path, profile: &Path) -> Command {
    let mut command = Command::new(browser);
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
        ])
        .arg(format!("--user-data-dir={}", profile.display()))
        .stdin(Stdio::null());
    command
}

/// Runs the browser on a file; what it wrote to standard output and error. Only this process is ended if it takes too long.
fn open(browser: &Path, folder: &Path, page: &Path, options: &[&str]) -> (String, String) {
    let profile = tempfile::tempdir_in(folder).unwrap();
    let (out, err) = (folder.join("out.txt"), folder.join("err.txt"));
    let mut child = headless(browser, profile.path())
        .args(["--enable-logging=stderr", "--v=0", "--virtual-time-budget=10000"])
        .args(options)
        .arg(format!("file://{}", page.display()))
        .stdout(std::fs::File::create(&out).unwrap())
        .stderr(std::fs::File::create(&err).unwrap())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let read = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
    let (out, err) = (read(&out), read(&err));
    assert!(status.is_some_and(|status| status.success()), "{status:?} after {:?}: {err}", begun.elapsed());
    (out, err)
}

/// Looks at the page inside of a frame of that width, since a window has a least width of its own, and writes what it sees
/// into attributes of the outer body.
const PROBE: &str = r#"<script>
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => {
  const page = frame.contentDocument, view = frame.contentWindow, seen = document.body.dataset;
  page.querySelectorAll("details").forEach(part => part.open = true);
  const drawn = element => { const box = element.getBoundingClientRect(); return box.width > 0 && box.height > 0; };
  seen.width = view.innerWidth;
  seen.needs = page.documentElement.scrollWidth;
  seen.dark = view.matchMedia("(prefers-color-scheme: dark)").matches;
  seen.figures = [...page.querySelectorAll("figure")].map(figure => [...figure.querySelectorAll("svg")].filter(drawn).length).join(",");
  let outside = [], over = [];
  for (const svg of [...page.querySelectorAll("svg")].filter(drawn)) {
    const paper = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
    for (const [i, [words, box]] of texts.entries()) {
      if (box.left < paper.left - 1 || box.right > paper.right + 1 || box.top < paper.top - 1 || box.bottom > paper.bottom + 1) outside.push(words);
      for (const [others, other] of texts.slice(i + 1))
        if (Math.min(box.right, other.right) - Math.max(box.left, other.left) > 1 && Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top) > 4)
          over.push(words + " / " + others);
    }
  }
  seen.outside = JSON.stringify(outside.slice(0, 5));
  seen.over = JSON.stringify(over.slice(0, 5));
  seen.rows = page.querySelectorAll("tbody tr").length;
});
</script>"#;

/// What [`PROBE`] saw.
fn seen(dom: &str, name: &str) -> String {
    let body = dom
        .split("<body")
        .nth(1)
        .and_then(|rest| rest.split('>').next())
        .unwrap_or_else(|| panic!("no body: {dom:.500}"));
    let value = body.split(&format!("data-{name}=\"")).nth(1).and_then(|rest| rest.split('"').next());
    value.unwrap_or_else(|| panic!("the probe did not run: {body}")).replace("&quot;", "\"")
}

fn probe(browser: &Path, folder: &Path, page: &str, width: u32, dark: bool) {
    // The page forbids scripts, as it should; here it is looked at from outside, without that line.
    let start = page.find("<meta http-equiv").unwrap();
    let end = start + page[start..].find('>').unwrap() + 1;
    let inner = format!("{}{}", &page[..start], &page[end..]).replace('&', "&amp;").replace('"', "&quot;");
    let outer = folder.join("probe.html");
    let text = format!(
        "<!DOCTYPE html><html><head><meta charset=\"utf-8\"></head><body style=\"margin:0\"><iframe width=\"{width}\" height=\"900\" \
         style=\"border:0\" srcdoc=\"{inner}\"></iframe>{PROBE}</body></html>"
    );
    std::fs::write(&outer, text).unwrap();
    let mut options = vec!["--dump-dom", "--window-size=1400,1000"];
    options.extend(dark.then_some("--blink-settings=preferredColorScheme=0"));
    let (dom, _) = open(browser, folder, &outer, &options);
    let what = format!("{width} px, dark {dark}");
    assert_eq!(seen(&dom, "width"), width.to_string(), "{what}");
    assert_eq!(seen(&dom, "dark"), dark.to_string(), "{what}");
    let needs: u32 = seen(&dom, "needs").parse().unwrap();
    assert!(needs <= width, "{what}: the page needs {needs} px and would scroll sideways");
    let figures = seen(&dom, "figures");
    assert_eq!(figures.split(',').count(), page.matches("<figure").count(), "{what}");
    assert!(figures.split(',').all(|count| count == "1"), "{what}: each figure shows one drawing: {figures}");
    assert_eq!(seen(&dom, "outside"), "[]", "{what}: words outside of their drawing");
    assert_eq!(seen(&dom, "over"), "[]", "{what}: words over words");
    assert!(seen(&dom, "rows").parse::<usize>().unwrap() > 20, "{what}");
}

/// Opens the page as a reader does; nothing may be complained about, and the picture is no blank sheet.
fn look(browser: &Path, folder: &Path, page: &Path, dark: bool) {
    let picture = folder.join(if dark { "dark.png" } else { "light.png" });
    let shot = format!("--screenshot={}", picture.display());
    let mut options = vec![shot.as_str(), "--window-size=1200,3000"];
    options.extend(dark.then_some("--blink-settings=preferredColorScheme=0"));
    let (_, log) = open(browser, folder, page, &options);
    let complaints: Vec<&str> = log.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    let (_, pixels) = pixels(&picture);
    let colors: BTreeSet<[u8; 3]> = pixels.iter().copied().collect();
    assert!(colors.len() > 100, "{} colours: a blank sheet", colors.len());
    let paper = pixels[0];
    let is_dark = paper.iter().map(|value| u32::from(*value)).sum::<u32>() < 200;
    assert_eq!(is_dark, dark, "paper is {paper:?}");
}

#[test]
fn the_page_is_what_it_should_be_in_a_browser() {
    if tiers::cases("browser::the_page_is_what_it_should_be_in_a_browser", [0, 0, 1]) == 0 {
        return;
    }
    let browser = browser().expect("Chromium is missing: apt-get install chromium, or name one with ZBENCH_BROWSER");
    let folder = tempfile::tempdir().unwrap();
    let notebook = folder.path().join("notebook");
    // More strategies than TINY has, and one cell that is out of memory.
    let text = TINY.replace("[\"ddp\", \"zero3\"]", "[\"ddp\", \"zero1\", \"zero3\", \"hsdp\"]")
        + "\"memory.capacity\" = [\"64KiB\", \"1MiB\"]\n";
    let file = support::write(folder.path(), &text.replace("ranks = 2", "ranks = 4"));
    let grid =
        support::run(&notebook, &["grid", file.to_str().unwrap(), "--trials", "2", "-q", "--set", "train.steps=6"]);
    assert!(grid.status.success(), "{}", support::stderr(&grid));
    let links =
        support::run(&notebook, &["allreduce", "-q", "--collective", "all", "-b", "1K", "-e", "64K", "-n", "2"]);
    assert!(links.status.success(), "{}", support::stderr(&links));
    let page = folder.path().join("report.html");
    let report = support::run(&notebook, &["report", "-o", page.to_str().unwrap()]);
    assert!(report.status.success(), "{}", support::stderr(&report));
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.matches("<figure").count() >= 9, "{} figures", text.matches("<figure").count());
    for (width, dark) in [(1200, false), (1200, true), (390, false), (390, true), (760, false)] {
        probe(&browser, folder.path(), &text, width, dark);
    }
    look(&browser, folder.path(), &page, false);
    look(&browser, folder.path(), &page, true);
}
