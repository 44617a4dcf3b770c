use super::*;
use crate::job::Recompute;

/// A whole profile: megatron-core's text, which has no base.
fn text() -> &'static str {
    FRAMEWORKS.texts.iter().find(|(name, _)| *name == "megatron-core").unwrap().1
}

#[test]
fn every_file_is_compiled_in_and_reads() {
    FRAMEWORKS.has_every_file_of("frameworks");
    for name in names() {
        let framework = framework(name).unwrap();
        assert_eq!(framework.name, name);
        assert!(framework.about.len() > 10 && framework.has("ddp"), "{name}: {framework:?}");
    }
}

#[test]
fn every_figure_of_those_that_are_compiled_in_has_a_source() {
    let optional = ["flops", "memory.logit.tensor_parallel", "memory.norm.fused_loss", "memory.activation.fused_loss"];
    for name in names() {
        let sources = &framework(name).unwrap().sources;
        for (key, _) in KEYS {
            let Some(source) = sources.get(*key) else {
                assert!(optional.contains(key), "{name} does not say {key}");
                continue;
            };
            assert!(source.len() >= 7 && !source.starts_with("stated by"), "{name}: {key} has source \"{source}\"");
        }
    }
}

#[test]
fn conventions_for_flops_are_rules_that_there_are() {
    let mut job = crate::rules::tests::job(crate::rules::tests::llama3_8b(), 8);
    job.model.gated = false;
    job.recompute = Recompute::Full { every: 1, partitioned: false };
    let rules: Vec<&str> = crate::rules::all(&job, None).iter().map(|check| check.name).collect();
    let named: Vec<String> = names().filter_map(|name| framework(name).unwrap().flops.clone()).collect();
    assert!(named.len() >= 5, "{named:?}");
    for flops in named {
        assert!(rules.contains(&format!("flops-{flops}").as_str()), "{flops} is none of {rules:?}");
    }
}

#[test]
fn what_a_figure_is_depends_on_the_job_as_its_key_says() {
    use crate::job::{Experts, Kind, Loss, Place};
    let habits = |name: &str, change: &dyn Fn(&mut crate::job::Job)| {
        let mut job = crate::rules::tests::job(crate::rules::tests::llama3_8b(), 8);
        job.framework = framework(name).unwrap();
        change(&mut job);
        crate::memory::habits(&job)
    };
    let logit = |name: &str, loss: Loss, tensor: usize| {
        habits(name, &|job| {
            job.loss = loss;
            job.degrees.tensor = tensor;
        })
        .logit
    };
    // By hand from the files.
    assert_eq!([Loss::Logits, Loss::Fused, Loss::Chunked(9)].map(|loss| logit("fsdp1", loss, 1)), [18.0, 4.0, 4.0]);
    assert_eq!([1, 2].map(|tensor| logit("fsdp2", Loss::Logits, tensor)), [14.0, 18.0]);
    assert_eq!([Loss::Logits, Loss::Fused].map(|loss| logit("megatron-core", loss, 2)), [6.0, 10.0]);
    assert_eq!(logit("zbench", Loss::Logits, 1), 4.0);
    let experts = Experts { count: 8, top: 2, ffn: 64, shared_ffn: 0, dense_layers: 0, imbalance: 1.0 };
    let grouped = habits("torch", &|job| job.model.experts = Some(experts.clone())).workspace;
    assert_eq!(grouped - habits("torch", &|_| ()).workspace, 128.0 * 1024.0 * 1024.0);
    // The base job has FSDP's sharding.
    let whole = |job: &mut crate::job::Job| job.sharding = crate::job::Sharding::whole();
    assert_eq!([habits("deepspeed", &|_| ()).buckets, habits("deepspeed", &whole).buckets], [2e9, 0.0]);
    let offloaded = |job: &mut crate::job::Job| {
        whole(job);
        job.offload.optimizer = Place::Host;
    };
    assert_eq!((habits("deepspeed", &offloaded).buckets, habits("deepspeed", &offloaded).update), (2e9, 4.0));
    assert_eq!(
        [habits("deepspeed", &|_| ()).update_group, habits("deepspeed", &whole).update_group],
        [1e9, f64::INFINITY]
    );
    let norm = |bias: bool, loss: Loss| {
        habits("fsdp1", &|job| {
            job.model.norm_bias = bias;
            job.loss = loss;
        })
        .norm
    };
    assert_eq!([norm(false, Loss::Logits), norm(true, Loss::Logits), norm(false, Loss::Fused)], [6.0, 2.0, 2.0]);
    let activation = |gated: bool, kind: Kind| {
        habits("torch", &|job| {
            job.model.gated = gated;
            job.model.kind = kind;
        })
        .activation
    };
    let t5 = Kind::EncoderDecoder { decoder_layers: 2, decoder_seq: 8 };
    assert_eq!(
        [activation(true, Kind::Decoder), activation(false, Kind::Decoder), activation(false, t5)],
        [1.0, 3.0, 0.0]
    );
    assert_eq!(
        [1, 4].map(|stages| habits("megatron-deepspeed", &|job| job.degrees.pipeline = stages).piped),
        [0.0, 3.0]
    );
}

#[test]
fn an_unknown_framework_is_an_error_that_lists_what_there_is() {
    let text = framework("fsdp3").unwrap_err().to_string();
    assert!(text.starts_with("there is no framework \"fsdp3\" (did you mean fsdp"), "{text}");
    assert!(names().all(|name| text.contains(name)), "{text}");
    for (asked, expected) in
        [("megatron", "megatron-lm"), ("Deep-Speed", "deepspeed"), ("pytorch", "torch"), ("jax", "")]
    {
        let Err(ProfileError::Unknown { nearest, .. }) = framework(asked) else { panic!("{asked} is no framework") };
        assert_eq!(nearest, expected, "{asked}");
    }
}

#[test]
fn a_base_is_overridden_figure_by_figure_and_sources_stay_true() {
    let text = "base = \"fsdp2\"\nmemory.logit.whole = 9\n[memory.norm]\nsource = \"measured here\"\nrms = 2.0\n\
                [drive]\ncopy_bytes = { value = 1.5, source = \"profiled\" }\n";
    let (mine, base) = (Framework::read("mine", text).unwrap(), framework("fsdp2").unwrap());
    assert_eq!((mine.memory.logit.whole, mine.memory.norm.rms, mine.drive.copy_bytes), (9.0, 2.0, 1.5));
    assert_eq!((mine.memory.logit.tensor_parallel, mine.memory.norm.layer), (Some(18.0), base.memory.norm.layer));
    assert_eq!((mine.strategies.len(), mine.about.as_str()), (base.strategies.len(), ""));
    assert_eq!(mine.sources["memory.logit.whole"], "stated by the profile mine");
    assert_eq!(mine.sources["memory.norm.rms"], "measured here");
    assert_eq!(mine.sources["drive.copy_bytes"], "profiled");
    assert_eq!(mine.sources["memory.norm.layer"], base.sources["memory.norm.layer"]);
    let error = Framework::read("x", "base = \"fsdp\"").unwrap_err();
    assert!(matches!(error, ProfileError::Base { .. }) && error.to_string().contains("fsdp2-compiled"), "{error}");
}

#[test]
fn what_is_wrong_is_said_by_key() {
    let of = |from: &str, to: &str| {
        assert!(text().contains(from), "{from}");
        Framework::read("mine", &text().replacen(from, to, 1)).unwrap_err()
    };
    let cases = [
        ("slack =", "slak =", "unknown key memory.slak (did you mean slack?)"),
        ("[memory.logit]", "[memory.logits]", "unknown key memory.logits (did you mean logit?)"),
        ("attention =", "atention =", "unknown key atention (did you mean attention?)"),
        ("{ value = 0.06, source = \"assumed\" }", "{ valeu = 0.06 }", "memory.slack.valeu (did you mean value?)"),
        (
            "{ value = 0.06, source = \"assumed\" }",
            "{ source = \"assumed\" }",
            "does not say memory.slack; write a share",
        ),
        (
            "slack = { value = 0.06, source = \"assumed\" }",
            "",
            "does not say memory.slack; write a share of what is not state",
        ),
        ("value = 0.06", "value = -0.06", "memory.slack = -0.06 is not a share"),
        ("value = 0.06", "value = nan", "memory.slack = nan"),
        ("value = \"102MiB\"", "value = \"2000TB\"", "memory.workspace = "),
        ("value = 0.06", "value = \"6 %\"", "memory.slack = \"6 %\""),
        ("\"102MiB\"", "\"102 parsecs\"", "memory.workspace = \"102 parsecs\" is not bytes"),
        ("value = 0.06, source = \"assumed\"", "value = 0.06, source = 3", "memory.slack.source = 3"),
        ("[memory.update]\n", "[memory.update]\nbytes = 4\n", "unknown key memory.update.bytes"),
        ("\"flash3\"", "\"flash4\"", "\"flash4\"] is not a list of \"naive\", \"flash1\""),
        ("\"zero2\"", "\"zero5\"", "is not a list of names of parallel.strategy"),
        ("value = \"fused\"", "value = \"jit\"", "drive.fusion = \"jit\" is not \"eager\""),
        ("network = 1.0", "network = 0.0", "drive.network = 0.0"),
        ("exposed = 0.0", "exposed = 1.5", "drive.exposed = 1.5"),
        ("prefetch = true", "prefetch = 1", "drive.prefetch = 1 is not true or false"),
        ("about = ", "base = 3\nabout = ", "base = 3 is not the name of a framework"),
        ("[memory.update]", "[memory]", "no TOML"),
        ("about = ", "about = \"x\"\nsource = ", "unknown key source"),
    ];
    for (from, to, wanted) in cases {
        let error = of(from, to).to_string();
        assert!(error.contains(wanted) && error.contains("mine"), "{to}: {error}");
    }
    assert!(Framework::read("mine", "memory = 3").unwrap_err().to_string().contains("memory = 3 is not a table"));
    assert!(matches!(Framework::read("mine", ""), Err(ProfileError::Missing { .. })));
}
