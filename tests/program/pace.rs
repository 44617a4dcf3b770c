//! An emulated speed of blocks through the command: labelled, with the losses of the same cell without it, and refused where it says nothing.

use crate::support::{self, TINY};
use serde_json::Value;

#[test]
fn paced_cells_are_labelled_and_ranked_among_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let file = support::write(folder.path(), TINY);
    let run = |sets: &[&str]| {
        let fixed = ["--format", "json", "run", file.to_str().unwrap(), "--set", "memory.checkpointing=none"];
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let words: Vec<&str> = fixed.into_iter().chain(["--set", "parallel.strategy=ddp"]).chain(sets).collect();
        support::run(folder.path(), &words)
    };
    let record = |sets: &[&str]| -> Value {
        let output = run(sets);
        assert!(output.status.success(), "{}", support::stderr(&output));
        serde_json::from_str(&support::stdout(&output)).unwrap()
    };
    let (bare, paced) = (record(&[]), record(&["pace.forward=2ms", "pace.backward=0.003"]));
    assert_eq!(paced["cell"]["pace"], serde_json::json!({"forward": 0.002, "backward": 0.003}));
    assert!(bare["cell"]["pace"].is_null() && bare["key"] != paced["key"]);
    let losses =
        |record: &Value| record["steps"].as_array().unwrap().iter().map(|s| s["loss"].to_string()).collect::<Vec<_>>();
    assert_eq!(losses(&bare), losses(&paced), "a pace changes no loss");
    let micros = paced["cell"]["train"]["accumulation"].as_f64().unwrap();
    assert!(paced["time"]["forward"].as_f64().unwrap() >= 2.0 * micros, "{}", paced["time"]);
    assert!(paced["time"]["backward"].as_f64().unwrap() >= 3.0 * micros, "{}", paced["time"]);
    let text = |record: &Value, key: &str| record[key].to_string();
    assert_eq!(paced["validity"].to_string().matches("emulated").count(), 1, "{}", paced["validity"]);
    assert!(text(&paced, "validity").contains("emulated_pace") && !text(&bare, "validity").contains("emulated_pace"));
    assert!(
        text(&paced, "notes").contains("Emulated pace: forward 2.00 ms and backward 3.00 ms."),
        "{}",
        paced["notes"]
    );
    // It is compared with nothing that runs at another pace.
    assert_eq!(paced["parity"]["verdict"], "reference", "{}", paced["parity"]);
    let said = support::stdout(&support::run(folder.path(), &["report", "--full"]));
    assert!(said.contains("EMULATED PACE: in 1 of 2 cells") && said.contains("[emulated pace]"), "{said}");
    for (sets, words) in [
        (&["pace.forward=4ms"][..], ["pace.backward", "write it beside pace.forward"]),
        (&["pace.backward=4ms"][..], ["pace.forward", "write it beside pace.backward"]),
        (&["pace.forward=0", "pace.backward=4ms"][..], ["pace.forward", "from 1us to 10s"]),
        (&["pace.forward=-1", "pace.backward=4ms"][..], ["pace.forward", "from 1us to 10s"]),
        (&["pace.forward=4ms", "pace.backward=1h"][..], ["pace.backward", "from 1us to 10s"]),
        (&["pace.forward=4ms", "pace.backward=soon"][..], ["pace.backward", "from 1us to 10s"]),
    ] {
        let refused = run(sets);
        let said = support::stderr(&refused);
        assert_eq!(refused.status.code(), Some(1), "{sets:?}: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{sets:?}: {said}");
    }
}
