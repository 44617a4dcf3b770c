//! Shows a file in a browser, by `$BROWSER` or the desktop's opener. Without either it prints where the file is.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use zbench_host::terminal::Env;

/// A program that cannot open a file is expected to fail within this time.
const SOON: Duration = Duration::from_secs(2);

/// Opens the file, or says how to look at it. Never an error: the file is there.
pub fn open(path: &Path) {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let address = address(&path);
    let mut reason = "there is no display here and BROWSER is not set".to_string();
    for words in ways(&|name| std::env::var(name).ok(), &is_program, cfg!(target_os = "macos")) {
        match start(&words, &address) {
            Ok(()) => {
                zbench_host::say!("opened {} with {}", path.display(), words[0]);
                return;
            }
            Err(why) => reason = why,
        }
    }
    zbench_host::say!("{} is not opened: {reason}", path.display());
    let host = zbench_host::machine::host_name();
    zbench_host::say!(
        "open it in a browser; from another machine: scp {host}:'{}' . (the page needs no other file)",
        path.display()
    );
}

/// A path in the folder for temporary files that no other process uses.
pub fn temporary(ending: &str) -> PathBuf {
    let now = jiff::Timestamp::now().as_nanosecond();
    std::env::temp_dir().join(format!("zbench-report-{}-{now}.{ending}", std::process::id()))
}

/// What may open a page here, best first, each as program and arguments. What the desktop has is asked only where there is one:
/// xdg-open would start a browser for terminals without.
pub fn ways(env: Env<'_>, is_program: &dyn Fn(&str) -> bool, is_mac: bool) -> Vec<Vec<String>> {
    let set = |name: &str| env(name).is_some_and(|value| !value.is_empty());
    // A list, best first, as other programs read `BROWSER`.
    let named = env("BROWSER").unwrap_or_default();
    let words = |command: &str| command.split_whitespace().map(str::to_string).collect::<Vec<_>>();
    let mut ways: Vec<Vec<String>> = named.split(':').map(words).filter(|words| !words.is_empty()).collect();
    let desktop: &[&str] = match (is_mac, set("DISPLAY") || set("WAYLAND_DISPLAY"), set("WSL_DISTRO_NAME")) {
        (true, ..) => &["open"],
        (false, true, false) => &["xdg-open"],
        (false, true, true) => &["wslview", "xdg-open"],
        (false, false, true) => &["wslview"],
        (false, false, false) => &[],
    };
    ways.extend(desktop.iter().filter(|name| is_program(name)).map(|name| vec![(*name).to_string()]));
    ways
}

/// Whether a program of that name can be found.
pub fn is_program(name: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(name).is_file())
}

/// The file as a URL, with special characters percent-encoded.
fn address(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte);
    let letter = |byte: &u8| if plain(*byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") };
    format!("file://{}", path.as_os_str().as_bytes().iter().map(letter).collect::<String>())
}

/// Starts a program in the background. It is an error if the program cannot start or fails at once.
fn start(words: &[String], address: &str) -> Result<(), String> {
    use std::os::unix::process::CommandExt;
    let (program, arguments) = words.split_first().ok_or("BROWSER names no program")?;
    let mut command = Command::new(program);
    let has_place = arguments.iter().any(|word| word.contains("%s"));
    command.args(arguments.iter().map(|word| word.replace("%s", address)));
    if !has_place {
        command.arg(address);
    }
    // A group of its own, so that Ctrl-C here does not close the reader's browser; no streams, so that none is held open.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().map_err(|error| format!("{program} cannot be started: {error}"))?;
    let begin = Instant::now();
    while begin.elapsed() < SOON {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("{program} ended with {status}")),
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &str, programs: &[&str], is_mac: bool) -> Vec<String> {
        let env = |name: &str| {
            let pairs = variables.split(';').filter_map(|pair| pair.split_once('='));
            pairs.into_iter().find(|(of, _)| *of == name).map(|(_, value)| value.to_string())
        };
        ways(&env, &|name| programs.contains(&name), is_mac).into_iter().map(|words| words.join(" ")).collect()
    }

    #[test]
    fn what_the_user_named_comes_first_and_the_desktop_only_where_there_is_one() {
        assert_eq!(found("", &["xdg-open", "open"], false), Vec::<String>::new());
        assert_eq!(found("DISPLAY=:0", &["xdg-open"], false), ["xdg-open"]);
        assert_eq!(found("WAYLAND_DISPLAY=wayland-0", &["xdg-open"], false), ["xdg-open"]);
        assert_eq!(found("DISPLAY=:0", &[], false), Vec::<String>::new());
        assert_eq!(found("DISPLAY=", &["xdg-open"], false), Vec::<String>::new());
        assert_eq!(found("", &["open"], true), ["open"]);
        assert_eq!(found("WSL_DISTRO_NAME=Debian", &["wslview", "xdg-open"], false), ["wslview"]);
        assert_eq!(found("BROWSER=a --new %s:b;DISPLAY=:0", &["xdg-open"], false), ["a --new %s", "b", "xdg-open"]);
    }

    #[test]
    fn an_address_is_plain() {
        assert_eq!(address(Path::new("/tmp/my report#1%.html")), "file:///tmp/my%20report%231%25.html");
        assert_eq!(address(Path::new("/é")), "file:///%C3%A9");
    }
}
