//! A schema that a policy is checked against: `--proto`, for `push`, `attach` and `upgrade`.

use std::path::PathBuf;

use clap::Args;
use tollgate_schema::Schema;

use crate::failure::Failure;
use crate::schema::{self, Files};

/// A schema that a policy is checked against.
#[derive(Debug, Default, Args)]
pub(crate) struct Against {
    /// Check the policy against this schema, too: a .proto file, a directory of them, or a
    /// serialized descriptor set; repeat for more
    #[arg(long, value_name = "PATH")]
    pub(crate) proto: Vec<PathBuf>,
    /// The directories of imports; those of the .proto files if left out
    #[arg(long, short = 'I', value_name = "DIR", requires = "proto")]
    pub(crate) include: Vec<PathBuf>,
}

/// The descriptor set to check a policy against; empty if none was given.
pub(super) fn against(args: &Against) -> Result<Vec<u8>, Failure> {
    let schema = schema_of(args)?;
    Ok(schema.map_or(Vec::new(), |schema| schema.descriptor_set().to_vec()))
}

/// The schema, if one was given.
pub(crate) fn schema_of(args: &Against) -> Result<Option<Schema>, Failure> {
    if args.proto.is_empty() {
        return Ok(None);
    }
    let files = Files {
        proto: args.proto.clone(),
        include: args.include.clone(),
    };
    schema::load(&files).map(Some)
}
