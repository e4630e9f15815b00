//! The hooks: the points in a call's life at which a policy evaluates it.

/// The point in a call's life at which a policy evaluates it.
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
    /// Its name in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Hook::Request => "request",
            Hook::Reply => "reply",
        }
    }
}
