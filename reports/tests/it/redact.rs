//! Secrets go, hosts become hashes, and everything else stays as it is.

use proptest::prelude::*;
use zbench_reports::redact::{REDACTED, host_hash, is_secret_name, variable, without_hosts, without_secrets};

#[test]
fn secrets_go_and_words_stay() {
    for (text, expected) in [
        ("zbench grid a.toml --set train.lr=1e-3", "zbench grid a.toml --set train.lr=1e-3"),
        ("--set data.tokenizer=tok.json data.source=tokens", "--set data.tokenizer=tok.json data.source=tokens"),
        ("--token=abc  x", "--token=<redacted>  x"),
        ("--password hunter2 next", "--password <redacted> next"),
        ("API_KEY=1 SECRET= z", "API_KEY=<redacted> SECRET= z"),
        ("http://me:pw@host/x?y", "http://<redacted>@host/x?y"),
        ("a,https://tok@h,ftp://h/p@q", "a,https://<redacted>@h,ftp://h/p@q"),
        ("use hf_abcdefgh12 now", "use <redacted> now"),
        ("sk-1 AKIAx", "sk-1 AKIAx"),
        // `a token: x` has no secret, but letters at the end of a word in another script are not the word `a`.
        ("\u{bae}a token:A0-^Aa%00", "\u{bae}a token:<redacted>"),
        ("a\u{bae} token:A0-^Aa%00", "a\u{bae} token:<redacted>"),
        ("a#\u{11c50} token:a00!--^aA", "a#\u{11c50} token:<redacted>"),
        ("ghp_0123456789abcdef\ttab\n", "<redacted>\ttab\n"),
        ("ls -p x\nsshpass -p hunter2 ssh h", "ls -p x\nsshpass -p <redacted> ssh h"),
        ("/usr/bin/mysql -uroot -phunter2 db", "/usr/bin/mysql -uroot -p<redacted> db"),
        ("sshpass -p 'a b' ssh h", "sshpass -p '<redacted>' ssh h"),
        ("mkdir -p a/b; ssh -p 22 h", "mkdir -p a/b; ssh -p 22 h"),
        ("dapi0123456789abcdef0123456789abcdef", "<redacted>"),
        ("use fw_3ZaBcDeFgHiJkLmNoPqRsT now, fw_grad_layer12_bias", "use <redacted> now, fw_grad_layer12_bias"),
        ("tgp_v1_abcdefghij0123456789 pplx-0123456789abcdefghij", "<redacted> <redacted>"),
        ("AGE-SECRET-KEY-1QYQSZQGPQYQSZQGPQYQSZQGPQYQSZQGPQYQSZQGPQYQSZQGPQY", "<redacted>"),
        ("https://hooks.slack.com/services/T0001/B0002/abcDEF", "https://hooks.slack.com/services/<redacted>"),
        ("https://discord.com/api/webhooks/123456789012345678/abc-DEF", "https://discord.com/api/webhooks/<redacted>"),
        (
            "https://api.telegram.org/bot123456789:AAEabcdefghijklmnopqrstuvwxyz012345/send",
            "https://api.telegram.org/bot<redacted>/send",
        ),
        ("12:30:45 and 123456789:short", "12:30:45 and 123456789:short"),
        ("", ""),
    ] {
        assert_eq!(without_secrets(text), expected, "{text}");
    }
    for secret in ["AWS_SECRET_ACCESS_KEY", "hf_token", "PGPASSWORD", "X_CREDENTIALS", "BASIC_AUTH"] {
        assert!(is_secret_name(secret), "{secret}");
    }
    assert!(!is_secret_name("NCCL_DEBUG"));
}

/// Where a secret can stand, as `{}`; whatever it is.
pub const FORMS: [&str; 62] = [
    "Authorization: Bearer {}",
    "authorization: bearer {}",
    "curl -H 'Authorization: Bearer {}' https://x.example/y",
    "curl -H \"Authorization: token {}\" https://x.example/y",
    "-H 'Proxy-Authorization: Basic {}'",
    "headers={'Authorization': 'Bearer {}'}",
    "{\"Authorization\": \"Bearer {}\", \"x\": 1}",
    "Cookie: session={}; theme=dark",
    "X-Api-Key: {}",
    "curl --header 'X-Auth-Token: {}'",
    "password: {}",
    "password:{}",
    "Password = {}",
    "the passphrase: {} and more",
    "token:{}",
    "token: {}",
    "token={}",
    "token = \"{}\"",
    "token='{}'",
    "access_token={}&x=1",
    "accessToken: \"{}\"",
    "refreshToken=>'{}'",
    "{\"api_key\":\"{}\"}",
    "{\"api_key\": \"{}\", \"lr\": 0.1}",
    "{'password': '{}'}",
    "{\"a\": [{\"client_secret\": \"{}\"}]}",
    "api_key: '{}'",
    "apiKey: {}",
    "api-key={}",
    "  secret: |\n    {}\n  lr: 1",
    "  password:\n    {}\n",
    "secret_key = '{}' # mine",
    "private_key={}",
    "AWS_SECRET_ACCESS_KEY={} zbench grid",
    "export HF_TOKEN={}; zbench run x.toml",
    "env WANDB_API_KEY={} zbench run",
    "PGPASSWORD='{}' psql",
    "sshpass --password={} ssh x",
    "MY_KEY={}",
    "DB_PASS={}",
    "db_pwd: {}",
    "os.environ[\"HF_TOKEN\"] = \"{}\"",
    "set HF_TOKEN=\"{}\"",
    "--token {}",
    "--token={}",
    "--token \"{}\"",
    "--api-key '{}' --lr 1",
    "--password {} next",
    "zbench run x --set 'a.secret={}'",
    "curl -u me:{} https://x.example",
    "curl -u 'me:{}' https://x.example",
    "curl -ume:{} https://x.example",
    "curl --user me:{} https://x.example",
    "curl --user=\"me:{}\"",
    "wget --proxy-user me:{}",
    "machine x.example login me password {}",
    "postgres://me:{}@db/x",
    "see https://{}@x.example/y",
    "git clone https://oauth2:{}@gitlab.example/x.git",
    "scp me:{}@node:/x .",
    "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
    "k=-----BEGIN OPENSSH PRIVATE KEY-----\\n{}\\n-----END OPENSSH PRIVATE KEY-----\\n",
];

/// How tokens begin that are known wherever they stand.
pub const BEGINNINGS: [&str; 30] = [
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "glrt-",
    "hf_",
    "sk-",
    "sk-proj-",
    "sk-ant-api03-",
    "sk_live_",
    "xoxa-",
    "xoxb-",
    "xoxp-",
    "xoxr-",
    "xoxs-",
    "xoxe-",
    "xapp-",
    "AIza",
    "AKIA",
    "ASIA",
    "npm_",
    "nvapi-",
    "dckr_pat_",
    "pypi-AgE",
    "gsk_",
    "ya29.",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIi",
];

#[test]
fn known_patterns_go_wherever_they_stand() {
    for form in FORMS {
        let text = form.replace("{}", "hunter2Xyz9");
        let said = without_secrets(&text);
        assert!(!said.contains("hunter2Xyz9") && said.contains(REDACTED), "{text:?} became {said:?}");
        assert_eq!(without_secrets(&said), said, "of {text:?}");
        // The same inside of JSON, and of JSON in that.
        let json = serde_json::to_string(&text).unwrap();
        for text in [json.clone(), serde_json::to_string(&json).unwrap()] {
            let said = without_secrets(&text);
            assert!(!said.contains("hunter2Xyz9"), "{text} became {said}");
        }
    }
    for begin in BEGINNINGS {
        let token = format!("{begin}ABCDEFGH0123456789ABCDEFGH");
        for text in [
            token.clone(),
            format!("use {token}, now"),
            format!("x={token}"),
            format!("\\n{token}\\n"),
            format!("({token})"),
        ] {
            let said = without_secrets(&text);
            assert!(!said.contains("0123456789ABC") && said.contains(REDACTED), "{text} became {said}");
        }
    }
    let jwt =
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U";
    assert_eq!(without_secrets(&format!("got {jwt}.")), "got <redacted>.");
    // What stands around them stays.
    for (text, expected) in [
        ("curl -H 'Authorization: Bearer abc' https://x/y", "curl -H 'Authorization: <redacted>' https://x/y"),
        ("{\"api_key\":\"X\",\"lr\":0.1}", "{\"api_key\":\"<redacted>\",\"lr\":0.1}"),
        ("curl -u me:pw https://x", "curl -u <redacted> https://x"),
        ("token: \"a b\" and lr: 1", "token: \"<redacted>\" and lr: 1"),
        ("--password 'it'\"'\"'s me' --lr 1", "--password <redacted> --lr 1"),
        ("Bearer of news", "Bearer of news"),
        ("use Bearer abcdefgh12345 now", "use Bearer <redacted> now"),
        ("use Basic bWU6aHVudGVyMg== now", "use Basic <redacted> now"),
        (
            "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
            "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        ),
    ] {
        assert_eq!(without_secrets(text), expected, "{text}");
    }
}

/// As at the end of a log that was cut.
#[test]
fn a_private_key_without_its_end_goes_to_the_end_of_the_text() {
    let said = without_secrets("it began\n-----BEGIN RSA PRIVATE KEY-----\nshort words\nand more");
    assert!(said.starts_with("it began") && !said.contains("words") && !said.contains("more"), "{said}");
}

#[test]
fn words_of_training_are_no_secrets() {
    for text in [
        "tokens: 512",
        "tokens=1024 tokens_per_second=1234.5",
        "token_ids: [1, 2, 3]",
        "token_ids = tensor([5])",
        "tokenizer: /data/tokenizer.json",
        "data.tokenizer=\"llama/tokenizer.model\"",
        "tokenizer = \"gpt2\"",
        "--max-tokens 5",
        "--max-tokens=5 --tokens 16k",
        "max_token: 8",
        "token: 512",
        "bytes per token: about three",
        "loss of the next token: 2.31",
        "TOKENIZERS_PARALLELISM=false",
        "eos_token: </s>, bos_token=<s>, pad_token: \"<pad>\"",
        "{\"eos_token\": \"<|endoftext|>\", \"unk_token\": \"<unk>\"}",
        "joules_per_token: 0.002",
        "--set model.num_key_value_heads=8",
        "num_key_value_heads: 8, key_value: both",
        "query, key, value: 3 products",
        "key: projection of the attention",
        "q_proj.weight k_proj.weight",
        "--set train.lr=1e-3 parallel.strategy=zero3",
        "forward pass: 3 ms, backward pass: slow",
        "pass=forward",
        "--pass backward",
        "author: somebody",
        "authors = [\"a\"]",
        "sort_key=loss cache_key: abc",
        "risk-averse mask-rcnn disk-bound-001 task-12345678",
        "hf_transfer hf_datasets_cache sk-learn scikit-learn",
        "ASIA AKIA AIza eyJ",
        "docker run --user 1000:1000 nvcr.io/nvidia/pytorch:24.05-py3@sha256:0123456789abcdef",
        "git@github.com:org/repo.git",
        "http://host:8080/a@b https://x.example/?a=1#b",
        "rank 0: 3 of 4, at 12:30:05 -u",
        "srun -u zbench grid x.toml",
        "kind: user:group -u me",
        "deepspeed --num_gpus 8 train.py --master_addr node --master_port 29500",
        "the secret of its speed is the cache; passing tokens around",
        "don't say 'it's done'",
    ] {
        assert_eq!(without_secrets(text), text);
    }
    for name in ["TOKENIZERS_PARALLELISM", "ZBENCH_TOKENIZER"] {
        assert!(!is_secret_name(name), "{name}");
    }
}

#[test]
fn hosts_become_hashes_and_versions_stay() {
    let names = vec!["node7".to_string()];
    let hash = host_hash;
    for (text, expected) in [
        ("rank 1 on node7 (pid 3)", format!("rank 1 on {} (pid 3)", hash("node7"))),
        ("node7:29500, node70", format!("{}:29500, node70", hash("node7"))),
        ("at node7.", format!("at {}.", hash("node7"))),
        ("node7.cluster.example", hash("node7.cluster.example")),
        ("10.0.0.5:80 and fe80::1%eth0", format!("{}:80 and {}", hash("10.0.0.5"), hash("fe80::1%eth0"))),
        ("52:54:00:12:34:56", hash("52:54:00:12:34:56")),
        (
            "127.0.0.1 ::1 0.0.0.0 :: zbench::runner 2.28.9 16:24:05",
            "127.0.0.1 ::1 0.0.0.0 :: zbench::runner 2.28.9 16:24:05".into(),
        ),
    ] {
        assert_eq!(without_hosts(text, &names), expected, "{text}");
    }
    assert_eq!(without_hosts("localhost node7", &[]), "localhost node7", "what nobody named is a word");
}

#[test]
fn variables() {
    let say = |name: &str, value: &str| variable(name, value, "node7");
    assert_eq!(say("MY_TOKEN", "x"), REDACTED);
    assert_eq!(say("UCX_X", "http://a:b@c"), REDACTED);
    assert_eq!(say("MASTER_ADDR", "gpu-01"), host_hash("gpu-01"));
    assert_eq!(say("OMPI_MCA_x", "a.b.example,c"), format!("{},c", host_hash("a.b.example")));
    assert_eq!(say("LD_PRELOAD", "/usr/lib/libjemalloc.so.2"), "/usr/lib/libjemalloc.so.2");
    assert_eq!(say("RUST_LOG", "zbench::runner=debug"), "zbench::runner=debug");
    assert_eq!(say("OMP_PLACES", "{0:4},{4:4}"), "{0:4},{4:4}");
    assert_eq!(say("NCCL_HOSTID", ""), "");
}

proptest! {
    #[test]
    fn a_planted_secret_never_stays(
        secret in "[A-Za-z][0-9][A-Za-z0-9!%*+.^~_-]{6,20}[A-Za-z0-9]",
        form in 0..FORMS.len(),
        around in (super::any::text(), super::any::text()),
    ) {
        // Words before it that open a quote and do not close it say that what follows is in quotes.
        let before: String = around.0.chars().filter(|c| !"\"'`\\".contains(*c)).collect();
        // `a token: x` speaks of tokens and has none, by design.
        let speaks = ["per", "each", "next", "last", "first", "one", "every", "this", "a"];
        let last = before.split(|c: char| !c.is_alphanumeric()).rfind(|word| !word.is_empty());
        prop_assume!(!last.is_some_and(|word| speaks.contains(&word.to_lowercase().as_str())));
        let text = format!("{before} {} {}", FORMS[form].replace("{}", &secret), around.1);
        let said = without_secrets(&text);
        prop_assert!(!said.contains(&secret), "{:?} became {:?}", text, said);
    }

    #[test]
    fn a_planted_token_never_stays(
        body in "[A-Z0-9]{15}[0-9][A-Z0-9]{4,20}",
        begin in 0..BEGINNINGS.len(),
        around in (super::any::text(), super::any::text()),
    ) {
        let text = format!("{} {}{body} {}", around.0, BEGINNINGS[begin], around.1);
        let said = without_secrets(&text);
        prop_assert!(!said.contains(&body), "{:?} became {:?}", text, said);
    }

    #[test]
    fn any_text_is_redacted_once(text in super::any::text(), host in "[a-z]{3,8}") {
        let names = vec![host.clone()];
        let once = without_hosts(&without_secrets(&text), &names);
        prop_assert_eq!(&without_secrets(&once), &once);
        let with_host = format!("{text} {host} {text}");
        let without = without_hosts(&with_host, &names);
        prop_assert!(!without.split_whitespace().any(|word| word == host), "{}", without);
    }
}

/// The quote that closes has fewer backslashes than the one that opens, and a letter of two bytes follows.
#[test]
fn quotes_that_do_not_match_end_no_run() {
    let kept = without_secrets("password: \\\"abc\"\u{e9} tail");
    assert!(!kept.contains("abc"), "{kept}");
}

proptest! {
    /// Names of secrets, quotes, backslashes and letters of several bytes in any order are no reason to panic.
    #[test]
    fn no_text_ends_the_redaction(parts in prop::collection::vec(0..14_usize, 0..24)) {
        const PARTS: [&str; 14] =
            ["password: ", "token=", "\"", "'", "`", "\\", "\\\\", "\u{e9}", "\u{1f511}", " ", "abc", "Authorization: ", "]", "\n"];
        let text: String = parts.iter().map(|part| PARTS[*part]).collect();
        without_secrets(&text);
    }
}
