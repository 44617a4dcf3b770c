use serde::{Deserialize, Serialize};

/// How [`Kernels::reduce`](crate::Kernels::reduce) joins the elements of its sources; the names are those of nccl-tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReduceOp {
    Sum,
    Prod,
    Min,
    Max,
    /// Their sum, divided by their number.
    Avg,
}

/// A name that no reduction has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no reduction named `{0}`; sum, prod, min, max and avg are")]
pub struct UnknownReduceOp(pub String);

impl ReduceOp {
    /// All reductions, in the order of nccl-tests.
    pub const ALL: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg];

    /// The name used in configurations and records.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Avg => "avg",
        }
    }
}

impl std::fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for ReduceOp {
    type Err = UnknownReduceOp;

    fn from_str(name: &str) -> Result<ReduceOp, UnknownReduceOp> {
        ReduceOp::ALL.into_iter().find(|op| op.name() == name).ok_or_else(|| UnknownReduceOp(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let names = ReduceOp::ALL.map(|op| op.to_string());
        assert_eq!(names, ["sum", "prod", "min", "max", "avg"]);
        assert!(ReduceOp::ALL.iter().all(|op| op.name().parse() == Ok(*op)));
        for wrong in ["", "Sum", "mean", " sum"] {
            let error = wrong.parse::<ReduceOp>().unwrap_err();
            assert!(error.to_string().contains(&format!("`{wrong}`")) && error.to_string().contains("avg"));
        }
    }
}
