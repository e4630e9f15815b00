//! How a call ended.

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// With the reply that was expected.
    Ok,
    /// With PERMISSION_DENIED.
    Denied,
    /// With RESOURCE_EXHAUSTED.
    Refused,
    /// With anything else, in one sentence.
    Failed(String),
}

impl Answer {
    /// Nothing is measured after a first call that was refused or failed.
    pub fn of_first_call(self) -> Result<(), String> {
        match self {
            Answer::Ok | Answer::Denied => Ok(()),
            Answer::Refused => Err("the first call was refused".to_owned()),
            Answer::Failed(sentence) => Err(format!("the first call failed: {sentence}")),
        }
    }
}
