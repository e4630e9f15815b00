//! The hooks: the points in a call's life at which a policy judges it.

/// Where in a call's life a policy is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hook {
    /// The request, on its way to the server.
    Request,
    /// The reply, on its way back.
    Reply,
}

impl std::fmt::Display for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Hook {
    /// As manifests write it.
    pub fn name(self) -> &'static str {
        match self {
            Hook::Request => "request",
            Hook::Reply => "reply",
        }
    }
}
