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
        ("ghp_0123456789abcdef\ttab\n", "<redacted>\ttab\n"),
        ("", ""),
    ] {
        assert_eq!(without_secrets(text), expected, "{text}");
    }
    for secret in ["AWS_SECRET_ACCESS_KEY", "hf_token", "PGPASSWORD", "X_CREDENTIALS", "BASIC_AUTH"] {
        assert!(is_secret_name(secret), "{secret}");
    }
    assert!(!is_secret_name("NCCL_DEBUG"));
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
    fn any_text_is_redacted_once(text in super::any::text(), host in "[a-z]{3,8}") {
        let names = vec![host.clone()];
        let once = without_hosts(&without_secrets(&text), &names);
        prop_assert_eq!(&without_secrets(&once), &once);
        let with_host = format!("{text} {host} {text}");
        let without = without_hosts(&with_host, &names);
        prop_assert!(!without.split_whitespace().any(|word| word == host), "{}", without);
    }
}
