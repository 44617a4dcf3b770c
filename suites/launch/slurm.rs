//! The compact lists of SLURM: nodes in brackets, tasks of nodes with repetitions.

use crate::LaunchError;

/// No cluster has more nodes; a list that says so is a mistake, and is not filled into memory.
const MOST_NODES: usize = 1 << 17;

/// The nodes of `node[01-03,7],gpu-a[1-2]`, in order.
///
/// # Errors
/// The list is not of this form.
pub fn expand_nodes(text: &str) -> Result<Vec<String>, LaunchError> {
    let wrong = |reason| LaunchError::Nodes { text: text.to_string(), reason };
    let mut nodes = Vec::new();
    for part in split_outside_brackets(text).ok_or_else(|| wrong("its brackets do not match"))? {
        expand(part, &mut nodes).map_err(wrong)?;
    }
    Ok(nodes)
}

/// The tasks of each node in `8(x2),4`: 8, 8, 4.
///
/// # Errors
/// The list is not of this form.
pub fn expand_tasks(text: &str) -> Result<Vec<usize>, LaunchError> {
    let wrong = |reason| LaunchError::Nodes { text: text.to_string(), reason };
    let mut tasks = Vec::new();
    for part in text.split(',') {
        let (count, times) = match part.split_once("(x") {
            None => (part, Some(1)),
            Some((count, times)) => (count, times.strip_suffix(')').and_then(|times| times.parse::<usize>().ok())),
        };
        let count = count.parse::<usize>().map_err(|_| wrong("a number of tasks is no number"))?;
        let times = times.ok_or_else(|| wrong("a repetition is not written (xN)"))?;
        if times > MOST_NODES - tasks.len().min(MOST_NODES) {
            return Err(wrong("names more nodes than any cluster has"));
        }
        tasks.resize(tasks.len() + times, count);
    }
    Ok(tasks)
}

/// The parts between commas that stand in no bracket.
fn split_outside_brackets(text: &str) -> Option<Vec<&str>> {
    let (mut parts, mut begin, mut inside) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            '[' | ']' => return None,
            ',' if !inside => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    (!inside).then_some(parts)
}

/// One part, which may have several brackets: `rack[1-2]node[1-4]`.
fn expand(part: &str, nodes: &mut Vec<String>) -> Result<(), &'static str> {
    if part.is_empty() {
        return Err("a node has no name");
    }
    let mut made = vec![String::new()];
    let mut rest = part;
    while let Some((plain, bracket)) = rest.split_once('[') {
        let (inside, after) = bracket.split_once(']').ok_or("its brackets do not match")?;
        let numbers = numbers(inside)?;
        if made.len().saturating_mul(numbers.len()).saturating_add(nodes.len()) > MOST_NODES {
            return Err("names more nodes than any cluster has");
        }
        made =
            made.iter().flat_map(|head| numbers.iter().map(move |number| format!("{head}{plain}{number}"))).collect();
        rest = after;
    }
    nodes.extend(made.into_iter().map(|head| head + rest));
    Ok(())
}

/// `01-03,7`: 01, 02, 03, 7. Leading zeros stay.
fn numbers(inside: &str) -> Result<Vec<String>, &'static str> {
    let mut numbers = Vec::new();
    for range in inside.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let parse = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse::<usize>().ok()).flatten().ok_or("a bracket holds something else than numbers")
        };
        let (from, to) = (parse(first)?, parse(last)?);
        if from > to {
            return Err("a range runs backwards");
        }
        if to - from >= MOST_NODES - numbers.len().min(MOST_NODES) {
            return Err("names more nodes than any cluster has");
        }
        numbers.extend((from..=to).map(|number| format!("{number:0width$}", width = first.len())));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn brackets_are_expanded() {
        let nodes = |text: &str| expand_nodes(text).unwrap().join(" ");
        assert_eq!(nodes("node[01-03,7],gpu-a[1-2]"), "node01 node02 node03 node7 gpu-a1 gpu-a2");
        assert_eq!(nodes("login"), "login");
        assert_eq!(nodes("a,b-1,c[9-11]"), "a b-1 c9 c10 c11");
        assert_eq!(nodes("r[1-2]n[08-09]x"), "r1n08x r1n09x r2n08x r2n09x");
    }

    #[test]
    fn tasks_are_repeated() {
        assert_eq!(expand_tasks("8(x2),4").unwrap(), [8, 8, 4]);
        assert_eq!(expand_tasks("3").unwrap(), [3]);
        assert_eq!(expand_tasks("1(x3)").unwrap(), [1, 1, 1]);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in
            ["", "n[1-2", "n1]", "n[[1]]", "n[]", "n[a-b]", "n[3-1]", "n[1-]", "a,,b", "n[1-99999999999]", "n[-1]"]
        {
            assert!(expand_nodes(text).is_err(), "{text}");
        }
        assert!(expand_nodes(&"n[1-1000]".repeat(8)).is_err(), "a product that fills memory");
        for text in ["", "x", "2(x", "2(x)", "2(3)", "(x2)", "2(x2", "1(x9999999999)", "1,,2"] {
            assert!(expand_tasks(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-c0-9\\[\\],\\-()x]{0,24}") {
            let _ = expand_nodes(&text);
            let _ = expand_tasks(&text);
        }

        /// A list made of known nodes expands to them.
        #[test]
        fn a_list_gives_its_nodes(first in 0usize..2000, count in 1usize..50, width in 1usize..6) {
            let text = format!("gpu[{first:0width$}-{:0width$}]-ib", first + count - 1);
            let wanted: Vec<String> = (first..first + count).map(|n| format!("gpu{n:0width$}-ib")).collect();
            prop_assert_eq!(expand_nodes(&text).unwrap(), wanted);
        }
    }
}
