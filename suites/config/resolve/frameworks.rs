//! The training framework that a configuration names.

use super::sources::{file_of_name, text_if_there};
use super::{Context, Refusal, Values};
use std::sync::{Arc, PoisonError};
use zbench_estimate::framework::{self, Framework};

/// Reads frameworks/NAME.toml beside the configuration, or the framework of that name that is compiled in; zbench's own engine
/// where none is named.
pub(super) fn framework(values: &Values, context: &Context) -> Result<Arc<Framework>, Refusal> {
    let Some(name) = values.given_text("hardware.software") else { return Ok(framework::zbench()) };
    let refuse = |message: String| values.refuse("hardware.software", &[], message);
    let path = file_of_name(values, context, "hardware.software", "frameworks", &name)?;
    // A thread that panicked while it held the lock has left no incomplete entry.
    let mut known = context.frameworks.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(framework) = known.get(&name) {
        return Ok(framework.clone());
    }
    let read = match text_if_there(&path).map_err(&refuse)? {
        Some(text) => Framework::read(&name, &text)
            .map(Arc::new)
            .map_err(|error| refuse(format!("{}: {error}", path.display())))?,
        None => framework::framework(&name)
            .map_err(|error| refuse(format!("{} is not there, and {error}", path.display())))?,
    };
    known.insert(name, read.clone());
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Document, Resolved};
    use std::path::Path;

    /// A cell for eight H100, with a line more in [hardware].
    fn resolved(folder: &Path, line: &str) -> Result<Resolved, Refusal> {
        let text = format!("[hardware]\nprofile = \"h100-sxm\"\n{line}\n[parallel]\nranks = 8\nstrategy = \"fsdp\"\n");
        let document = Document::parse(Path::new("t.toml"), &text, &[]).unwrap();
        crate::resolve(&document.base, &Context::new(folder.into(), 1))
    }

    #[test]
    fn a_file_beside_the_configuration_is_a_framework() {
        let folder = std::env::temp_dir().join(format!("zbench-frameworks-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("frameworks")).unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.join("frameworks").join(name), text).unwrap();
        write("ours.toml", "base = \"fsdp2\"\nstrategies = [\"fsdp\"]\nmemory.logit.whole = 9.0\n");
        write("torch.toml", "base = \"deepspeed\"\n");
        write("wrong.toml", "base = \"fsdp2\"\nmemory.slak = 0.1\n");
        let of = |name: &str| resolved(&folder, &format!("software = \"{name}\""));
        let ours = of("ours").unwrap();
        assert_eq!((ours.framework.name.as_str(), ours.framework.memory.logit.whole), ("ours", 9.0));
        assert_eq!(ours.cell.hardware.software.as_deref(), Some("ours"));
        // It takes precedence over the one that is compiled in, and one of no file is that one.
        assert!(of("torch").unwrap().framework.has("zero3"));
        assert_eq!(of("fsdp1").unwrap().framework, framework::framework("fsdp1").unwrap());
        assert_eq!(resolved(&folder, "").unwrap().framework, framework::zbench());
        let error = of("wrong").unwrap_err();
        assert_eq!(error.key, "hardware.software");
        assert!(error.message.contains("unknown key memory.slak (did you mean slack?)"), "{}", error.message);
        let error = of("fsdp3").unwrap_err().message;
        assert!(
            error.contains("frameworks") && error.contains("there is no framework \"fsdp3\" (did you mean fsdp1?)"),
            "{error}"
        );
        assert!(of("../x").unwrap_err().message.contains("is not a valid name"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
