//! How a call ended.

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// With the expected reply.
    Ok,
    /// With PERMISSION_DENIED.
    Denied,
    /// With RESOURCE_EXHAUSTED.
    Refused,
    /// With any other status, in one sentence.
    Failed(String),
}

impl Answer {
    /// Fails if the first call was refused or failed, because then nothing is measured.
    pub fn of_first_call(self) -> Result<(), String> {
        match self {
            Answer::Ok | Answer::Denied => Ok(()),
            Answer::Refused => Err("the first call was refused".to_owned()),
            Answer::Failed(sentence) => Err(format!("the first call failed: {sentence}")),
        }
    }
}
