//! Secrets in text, by their looks: private keys, tokens of well-known services, values of secret names, credentials of
//! addresses and commands.

mod quotes;

use self::quotes::{Open, QUOTES, closing, span};
use super::REDACTED;

/// The least number of characters that follow, and how tokens of well-known services begin.
const TOKENS: [(usize, &[&str]); 5] = [
    (8, &["github_pat_", "dckr_pat_"]),
    (
        8,
        &[
            "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "glpat-", "gldt-", "glrt-", "glptt-", "glcbt-", "hf_", "sk-",
            "sk_live_", "sk_test_", "rk_live_", "gsk_", "xai-", "nvapi-", "npm_", "dop_v1_", "lin_api_", "ya29.",
            "xoxa-", "xoxb-", "xoxe-", "xoxp-", "xoxr-", "xoxs-", "xapp-",
        ],
    ),
    (15, &["eyJ"]),
    (16, &["pypi-", "hvs.", "r8_", "SG.", "AIza", "tgp_v1_", "pplx-", "AGE-SECRET-KEY-1"]),
    // Letters and digits alone follow, since words of programs begin so, too.
    (20, &["dapi", "fw_", "rpa_"]),
];
/// Programs whose option -p is a password, behind a blank or at once.
const PASSWORD_FLAG: [&str; 5] = ["sshpass", "mysql", "mysqldump", "mysqladmin", "mariadb"];
/// What stands in addresses before a secret path.
const WEBHOOKS: [&str; 4] =
    ["hooks.slack.com/services/", "/api/webhooks/", "/webhookb2/", "hooks.slack.com/workflows/"];
/// Beginnings of AWS's access keys; 16 capitals and digits follow.
const AWS: [&str; 4] = ["AKIA", "ASIA", "ABIA", "ACCA"];

/// Words of a name whose value is a secret, whatever it looks like.
const ALWAYS: &str = "
    PASSWORD PASSWD PASSPHRASE PSWD PW SECRET SECRETS CRED CREDS CREDENTIAL CREDENTIALS AUTH OAUTH APIKEY AUTHTOKEN";
/// Ends of words that are written together, as `PGPASSWORD`.
const ENDS: &str = "PASSWORD PASSWD PASSPHRASE SECRET APIKEY";
/// Names of headers: all of the line behind them is secret.
const HEADERS: &str = "AUTHORIZATION COOKIE COOKIES";
/// Words that make a key a secret one.
const KEYS: &str = "
    API ACCESS SECRET PRIVATE SSH SIGNING ENCRYPTION AUTH LICENSE ACCOUNT SERVICE DEPLOY MASTER AWS SHARED
    SUBSCRIPTION HMAC TLS SSL STORAGE";
/// Words beside `TOKEN`, `KEY` and `PASS` in names that are of data, models and measurements.
const ORDINARY: &str = "
    EOS BOS PAD UNK SEP CLS MASK IMAGE AUDIO VIDEO SPECIAL MAX MIN NUM N PER ID IDS TYPE TYPES COUNT LENGTH
    EMBEDDING EMBEDDINGS LOSS RATE LIMIT BUDGET DROP CACHE LEVEL BATCH BEGIN END START STOP FIRST LAST NEXT NEW PREV
    PREVIOUS MULTI SINGLE TEXT LABEL SORT GROUP PRIMARY FOREIGN PUBLIC QUERY VALUE VALUES HEAD HEADS PROJ CELL
    SORTED STATE DICT COLUMN METRIC FORWARD BACKWARD SECOND OPTIMIZER COMPILER GRAD WARMUP ROUTING";
/// What stands before `token` where no secret follows: `bytes per token: 4 of f32`.
const BEFORE: &str = "per each next last first one every this a";
/// Words that are values of settings, and no secrets.
const PLAIN: &str = "true false null none yes no on off forward backward both all value";

/// Whether a word is one of those in a list, which blanks separate.
fn lists(list: &str, word: &str) -> bool {
    list.split_whitespace().any(|listed| listed == word)
}

/// What a name says about its value.
#[derive(Clone, Copy, PartialEq)]
enum Name {
    /// Nothing.
    Plain,
    /// Every value is secret.
    Secret,
    /// And so is the rest of the line.
    Header,
    /// A secret, unless it is a number or a word like `true`.
    Likely,
    /// A secret behind `=` or as a flag; behind `:` only if it looks like one.
    Unclear,
}

/// A text without what looks like a secret.
pub fn without_secrets(text: &str) -> String {
    let mut text = without_private_keys(text);
    // What was taken out may have stood between a name and its value. A text gets shorter or is stable soon.
    for _ in 0..8 {
        let next = without_tokens(&without_addresses(&without_values(&text)));
        if next == text {
            break;
        }
        text = next;
    }
    text
}

/// Whether a field or variable of this name has a secret as its value.
pub fn is_secret_field(name: &str, value: &str) -> bool {
    match kind(name, "") {
        Name::Secret | Name::Header => !value.is_empty(),
        Name::Likely => is_likely(value),
        // `key` is a field of every record.
        Name::Unclear | Name::Plain => false,
    }
}

/// The words of a name: `data.apiKey` is `DATA`, `API`, `KEY`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for c in name.chars() {
        let is_new = !c.is_ascii_alphanumeric() || c.is_ascii_uppercase() && before.is_ascii_lowercase();
        if is_new && words.last().is_some_and(|word| !word.is_empty()) {
            words.push(String::new());
        }
        if let (true, Some(word)) = (c.is_ascii_alphanumeric(), words.last_mut()) {
            word.push(c.to_ascii_uppercase());
        }
        before = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

/// What a name says of its value; `before` is the word that stands before it.
fn kind(name: &str, before: &str) -> Name {
    // The whole name decides: most words of a text are none of these.
    const PARTS: [&str; 10] = ["pass", "token", "key", "secret", "cred", "auth", "cookie", "pw", "sig", "pswd"];
    let lower = name.to_ascii_lowercase();
    if name.len() > 200 || !PARTS.iter().any(|part| lower.contains(part)) {
        return Name::Plain;
    }
    let words = words(name);
    let has = |list: &str| words.iter().any(|word| lists(list, word));
    let last = words.last().map_or("", String::as_str);
    if lists(HEADERS, last) {
        return Name::Header;
    }
    let joined = |word: &String| ENDS.split(' ').any(|end| word.ends_with(end));
    if has(ALWAYS) || words.iter().any(joined) || words.len() > 1 && has("PWD") {
        return Name::Secret;
    }
    if has("KEY") && has(KEYS) {
        return Name::Secret;
    }
    let ordinary = has(ORDINARY);
    if words.iter().any(|word| word.ends_with("TOKEN")) && !ordinary && !lists(BEFORE, before) {
        return Name::Likely;
    }
    if ["KEY", "PASS"].contains(&last) && !ordinary && !lists(BEFORE, before) {
        return if words.len() > 1 { Name::Likely } else { Name::Unclear };
    }
    if ["SIG", "SIGNATURE"].contains(&last) { Name::Unclear } else { Name::Plain }
}

/// A value of a name that is likely to be secret, and may be of a count or a switch.
fn is_likely(value: &str) -> bool {
    let value = value.trim_end_matches([',', ';', '.', ')', ']', '}']);
    let plain = lists(PLAIN, &value.to_ascii_lowercase());
    !value.is_empty() && !plain && !is_number(value)
}

/// `512`, `1e-3`, `16k`, `2.5ms`: of 12 characters at most, as a longer one may be a secret of digits.
fn is_number(value: &str) -> bool {
    const UNITS: [&str; 14] = ["", "k", "K", "M", "B", "G", "T", "%", "ms", "us", "s", "x", "KiB", "MiB"];
    let end = value.rfind(|c: char| c.is_ascii_digit()).map_or(0, |end| end + 1);
    let (number, unit) = value.split_at(end);
    let is_part = |c: char| c.is_ascii_digit() || "+-._,/eE".contains(c);
    !number.is_empty() && value.len() <= 12 && number.chars().all(is_part) && UNITS.contains(&unit)
}

/// Letters and digits mixed, or long and of no language.
fn looks_random(value: &str) -> bool {
    let digits = value.bytes().filter(u8::is_ascii_digit).count();
    let letters = value.bytes().filter(u8::is_ascii_alphabetic).count();
    value.len() >= 12 && digits >= 2 && letters >= 2 && !value.contains(['/', '=']) || value.len() >= 32
}

/// Without blocks `-----BEGIN … PRIVATE KEY-----`; one without an end goes to the text's.
fn without_private_keys(text: &str) -> String {
    const BEGIN: &str = "-----BEGIN ";
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(BEGIN) {
        let (before, block) = rest.split_at(start);
        out.push_str(before);
        let title = &block[BEGIN.len()..];
        let title = &title[..title.find("-----").unwrap_or(title.len())];
        if !title.contains("PRIVATE KEY") {
            out.push_str(BEGIN);
            rest = &block[BEGIN.len()..];
            continue;
        }
        out.push_str(REDACTED);
        let end = format!("-----END {title}-----");
        rest = block.find(&end).map_or("", |at| &block[at + end.len()..]);
    }
    out.push_str(rest);
    out
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-.".contains(c)
}

/// Without the values of secret names: `--token X`, `API_KEY=X`, `{"password": "X"}`, `Authorization: Bearer X`,
/// `-u user:X`, `Bearer X`.
fn without_values(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut at, mut open, mut before) = (0, Open::default(), "");
    let is_netrc = text.contains("machine ") && text.contains("login ");
    while let Some(first) = text[at..].chars().next() {
        if !is_name(first) {
            open.pass(text, at, first);
            out.push(first);
            at += first.len_utf8();
            // A word in another script stands between.
            if first.is_alphanumeric() {
                before = "";
            }
            continue;
        }
        let end = text[at..].find(|c| !is_name(c)).map_or(text.len(), |length| at + length);
        // A value may follow such a flag at once.
        let is_flag = text[at..end].starts_with("-p") && takes_password(&text[..at]);
        let end = if is_flag { at + 2 } else { end };
        let name = &text[at..end];
        // Letters at the end of a word in another script are not the word `a`.
        let is_word = !text[..at].ends_with(char::is_alphanumeric) && !text[end..].starts_with(char::is_alphanumeric);
        out.push_str(name);
        at = end;
        if let Some((start, end)) = secret_behind(text, end, (name, before), is_netrc, &open) {
            out.push_str(&text[at..start]);
            out.push_str(REDACTED);
            text[at..end].char_indices().for_each(|(place, c)| open.pass(text, at + place, c));
            at = end;
        }
        before = if is_word { name } else { "" };
    }
    out
}

/// Whether the command that a text ends in is of a program whose option -p is a password.
fn takes_password(before: &str) -> bool {
    let command = before.rsplit(['\n', ';', '|', '&']).next().unwrap_or_default();
    let mut words = command.split_whitespace().map(|word| word.trim_matches(['"', '\'', '(', '`']));
    words.any(|word| PASSWORD_FLAG.contains(&word.rsplit('/').next().unwrap_or(word)))
}

/// Where the secret stands that a name tells of; the name, behind the word before it, ends at `end`.
fn secret_behind(
    text: &str,
    end: usize,
    (name, before): (&str, &str),
    is_netrc: bool,
    open: &Open,
) -> Option<(usize, usize)> {
    let spaces = |at: usize| at + text[at..].len() - text[at..].trim_start_matches([' ', '\t']).len();
    let is_flag = name.starts_with('-');
    let lower = name.trim_start_matches('-').to_ascii_lowercase();
    let value = |at: usize| span(text, at, false, open);
    if is_flag && ["u", "user", "proxy-user"].contains(&lower.as_str()) {
        let at = if text[end..].starts_with('=') { end + 1 } else { spaces(end) };
        return value(at).filter(|(start, stop)| at > end && is_login(&text[*start..*stop]));
    }
    // `-uuser:password`.
    if let Some(user) = name.strip_prefix("-u").filter(|user| !user.is_empty() && text[end..].starts_with(':')) {
        let stop = value(end + 1)?.1;
        return is_login(&format!("{user}:{}", &text[end + 1..stop])).then_some((end + 1, stop));
    }
    if name == "-p" && takes_password(&text[..end]) {
        return value(spaces(end)).filter(|(start, stop)| is_secret(Name::Secret, &text[*start..*stop]));
    }
    if ["bearer", "basic"].contains(&lower.as_str()) {
        let at = spaces(end);
        let is_token = |said: &str| match lower.as_str() {
            "bearer" => said.len() >= 8 && said.bytes().any(|b| b.is_ascii_digit() || b.is_ascii_uppercase()),
            _ => decoded(said).is_some_and(|pair| is_login(&pair)),
        };
        return value(at).filter(|(start, stop)| at > end && is_token(&text[*start..*stop]));
    }
    let kind = kind(name, &before.to_ascii_lowercase());
    if kind == Name::Plain {
        return None;
    }
    let closed = end + closing(&text[end..]);
    let at = spaces(closed);
    let Some(sign) = ["=>", ":=", "==", "=", ":"].into_iter().find(|sign| text[at..].starts_with(sign)) else {
        // The value of a flag is the next word; netrc has no signs at all.
        let is_netrc = is_netrc && lower == "password";
        return value(at).filter(|(start, stop)| {
            at > end && (is_flag && kind != Name::Header && is_secret(kind, &text[*start..*stop]) || is_netrc)
        });
    };
    let mut start = at + sign.len();
    // `SECRET= z` has no value; `secret = z` has, and so has `secret: z`.
    if sign != "=" || at > end {
        start = spaces(start);
    }
    if sign == ":" {
        start = indented(text, start).unwrap_or(start);
    }
    let mut open = open.clone();
    text[end..start].char_indices().for_each(|(place, c)| open.pass(text, end + place, c));
    let (start, stop) = span(text, start, kind == Name::Header, &open)?;
    let said = &text[start..stop];
    let is_one = if kind == Name::Unclear && sign == ":" { looks_random(said) } else { is_secret(kind, said) };
    is_one.then_some((start, stop))
}

fn is_secret(kind: Name, value: &str) -> bool {
    matches!(kind, Name::Secret | Name::Header) || is_likely(value)
}

/// `user:password`; two numbers are ids of a user and a group, as those that `$(id -u)` prints, and `scheme://` is an address.
fn is_login(text: &str) -> bool {
    let is_id = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) || text.starts_with("$(id");
    text.split_once(':').is_some_and(|(user, word)| {
        let is_plain = word.starts_with("//") || is_id(user) && is_id(word);
        !user.is_empty() && !word.is_empty() && !is_plain
    })
}

/// Where YAML's value begins that stands below its name. In JSON's strings a line ends in `\n`.
fn indented(text: &str, at: usize) -> Option<usize> {
    let rest = text[at..].trim_start_matches(['|', '>', '-', '+']).trim_start_matches([' ', '\t']);
    let mut lines = rest;
    loop {
        let next = lines.trim_start_matches(['\n', '\r']);
        let escaped = next.trim_start_matches('\\');
        let is_end = escaped.len() < next.len() && escaped.starts_with(['n', 'r']);
        if next.len() == lines.len() && !is_end {
            break;
        }
        lines = if is_end { &escaped[1..] } else { next };
    }
    let value = lines.trim_start_matches([' ', '\t']);
    (lines.len() < rest.len() && value.len() < lines.len()).then(|| text.len() - value.len())
}

/// Base64 as text, if it is that.
fn decoded(text: &str) -> Option<String> {
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0u32, 0u32);
    for byte in text.trim_end_matches('=').bytes() {
        let six = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        (held, bits) = ((held << 6 | u32::from(six)) & 0xffff, bits + 6);
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
        }
    }
    String::from_utf8(bytes).ok().filter(|text| !text.is_empty() && text.chars().all(|c| !c.is_control()))
}

/// Without what stands before the `@` of `scheme://user:password@host`, and without the password of `user:password@host`.
fn without_addresses(text: &str) -> String {
    let words = text.split_inclusive(|c: char| c.is_whitespace() || QUOTES.contains(&c));
    words.map(|word| if word.contains('@') { without_credentials(word) } else { word.to_string() }).collect()
}

fn without_credentials(word: &str) -> String {
    let mut out = String::new();
    let mut rest = word;
    if !word.contains("://") {
        let digest = |host: &str| host.starts_with("sha256:") || !host.starts_with(|c: char| c.is_ascii_alphanumeric());
        let login = word.rsplit_once('@').filter(|(_, host)| !digest(host));
        let found = login.and_then(|(login, host)| Some((login.split_once(':')?, host)));
        return match found {
            Some(((user, password), host)) if !user.is_empty() && !password.is_empty() && !user.contains('/') => {
                format!("{user}:{REDACTED}@{host}")
            }
            _ => word.to_string(),
        };
    }
    while let Some(start) = rest.find("://") {
        let (before, after) = rest.split_at(start + 3);
        out.push_str(before);
        let authority = &after[..after.find(['/', '?', '#']).unwrap_or(after.len())];
        // A password may hold a slash that should have been escaped; a port is a number.
        let is_cut = authority.split_once(':').is_some_and(|(_, port)| !port.bytes().all(|b| b.is_ascii_digit()));
        let next = after.find("://").unwrap_or(after.len());
        let until = if is_cut && !authority.contains('@') { &after[..next] } else { authority };
        match until.rfind('@') {
            Some(at) => {
                out.push_str(REDACTED);
                rest = &after[at..];
            }
            None => rest = after,
        }
    }
    out.push_str(rest);
    out
}

/// Without tokens of well-known services.
fn without_tokens(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        match token(text, at) {
            Some(end) => {
                out.push_str(REDACTED);
                at = end;
            }
            None => {
                out.push(c);
                at += c.len_utf8();
            }
        }
    }
    out
}

/// The end of a token that begins at a place.
fn token(text: &str, at: usize) -> Option<usize> {
    let rest = &text[at..];
    let length = |from: usize, more: &str| {
        let is_body = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
        rest[from..].find(|c| !is_body(c)).unwrap_or(rest.len() - from)
    };
    let bytes = text.as_bytes();
    // Behind a letter or digit it is the middle of a word, unless that is of an escape: \nghp_…, %20ghp_….
    let is_escape = at >= 2 && bytes[at - 2] == b'\\' || at >= 3 && bytes[at - 3] == b'%';
    let is_start = at == 0 || !bytes[at - 1].is_ascii_alphanumeric() || is_escape;
    if let Some(begin) = AWS.iter().find(|begin| rest.starts_with(**begin)) {
        let body = &rest[begin.len()..begin.len() + length(begin.len(), "")];
        let is_one = body.len() >= 16 && body.bytes().take(16).all(|b| b.is_ascii_uppercase() || b.is_ascii_digit());
        return is_one.then_some(at + begin.len() + body.len());
    }
    if let Some(end) = bot_token(rest).filter(|_| at == 0 || !bytes[at - 1].is_ascii_digit()) {
        return Some(at + end);
    }
    if let Some(before) = WEBHOOKS.iter().find(|before| text[..at].ends_with(**before)) {
        let is_path = |c: char| c.is_ascii_alphanumeric() || "/_-@".contains(c);
        let end = rest.find(|c| !is_path(c)).unwrap_or(rest.len());
        return (end >= 16 || before.len() > 20 && end > 0).then_some(at + end);
    }
    let (least, begin) = TOKENS
        .iter()
        .find_map(|(least, begins)| Some((*least, *begins.iter().find(|begin| rest.starts_with(**begin))?)))?;
    let is_plain = ["hf_", "dapi", "fw_", "rpa_"].contains(&begin);
    // Some beginnings are those of words, too: hf_transfer, sk-learn.
    let is_word =
        ["hf_", "sk-", "npm_", "xai-", "SG.", "pypi-", "r8_", "hvs.", "gsk_", "dapi", "fw_", "rpa_"].contains(&begin);
    let body = &rest[begin.len()..begin.len() + length(begin.len(), if is_plain { "" } else { "_-." })];
    let has_digit = body.bytes().any(|byte| byte.is_ascii_digit());
    let plain = body.bytes().filter(u8::is_ascii_alphanumeric).count();
    let is_one = body.len() >= least
        && (!is_word || has_digit && plain >= 8 || body.len() >= 30)
        && (is_start || !is_word && body.len() >= 16 && has_digit);
    // A sentence's end is not the token's.
    let body = body.trim_end_matches('.');
    is_one.then_some(at + begin.len() + body.len())
}

/// The length of a token of Telegram's bots, if a text begins with one: a number, a colon and 35 characters.
fn bot_token(text: &str) -> Option<usize> {
    let (number, behind) = text.split_once(':')?;
    let is_number = (8..=10).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit());
    let body = behind.find(|c: char| !(c.is_ascii_alphanumeric() || "_-".contains(c))).unwrap_or(behind.len());
    (is_number && body == 35).then_some(number.len() + 1 + body)
}
