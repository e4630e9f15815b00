//! A method's message as a policy gets it: from JSON to a block, a view, a changed block, and back.
//!
//! Projection and patch are the daemon's code: [`Sample`].

use std::sync::Arc;

use serde_json::Value as Json;
use tollgate_jit::Projector;
use tollgate_marshal::Program;
use tollgate_policy_chain::evaluation::Unchanged;
use tollgate_policy_chain::fields::{self, Fields};
use tollgate_policy_chain::plan::Patcher;
use tollgate_policy_chain::sample::{Sample, ViewError};
use tollgate_policy_host::{Effects, Hook, Manifest, ShownKeys};
use tollgate_schema::dynamic::{from_json, read_block, to_json, write_block};
use tollgate_schema::prost_reflect::MessageDescriptor;
use tollgate_schema::{DynamicError, Layouts, MessageId, Schema};

use crate::cases::Grant;
use crate::{Case, ToolError};

/// One side of one method, bound to a schema and a manifest.
pub(crate) struct Target {
    pub(crate) hook: Hook,
    /// The manifest's entry for it, if the policy covers the method at this hook.
    pub(crate) entry: Option<Entry>,
    layouts: Arc<Layouts>,
    id: MessageId,
    descriptor: MessageDescriptor,
    program: Arc<Program>,
}

/// The manifest's entry for a method, resolved.
pub(crate) struct Entry {
    /// The method's index for `evaluate`.
    pub(crate) method: u32,
    pub(crate) projector: Projector,
    patcher: Patcher,
    pub(crate) shown: ShownKeys,
}

impl Target {
    pub(crate) fn new(
        schema: &Schema,
        manifest: &Manifest,
        grant: &Grant,
        case: &Case,
    ) -> Result<Target, ToolError> {
        let service = schema.service(&case.service).map_err(|e| case.error(e))?;
        let method = service.methods.iter().find(|m| m.name == case.method);
        let method = method.ok_or_else(|| {
            let names: Vec<_> = service.methods.iter().map(|m| m.name.as_str()).collect();
            let (name, names) = (&case.method, names.join(", "));
            case.error(format!(
                "service {} has no method {name:?}; it has {names}",
                service.name
            ))
        })?;
        let id = match case.hook {
            Hook::Request => method.input,
            Hook::Reply => method.output,
        };
        let layouts = Arc::clone(&service.layouts);
        let name = &layouts.get(id).name;
        Ok(Target {
            hook: case.hook,
            entry: Entry::new(&layouts, id, manifest, grant, case)?,
            descriptor: schema.message(name).map_err(ToolError::schema)?,
            program: Program::new(&layouts, id),
            layouts,
            id,
        })
    }

    /// The block of a message in JSON.
    pub(crate) fn block(&self, json: &Json) -> Result<Vec<u8>, DynamicError> {
        let message = from_json(&self.descriptor, &json.to_string())?;
        write_block(&self.layouts, self.id, &message)
    }

    /// A block as JSON.
    pub(crate) fn json(&self, block: &[u8]) -> Result<String, ToolError> {
        let message = read_block(&self.layouts, self.id, &self.descriptor, block);
        let json = message.and_then(|message| to_json(&message));
        json.map_err(ToolError::internal)
    }
}

impl Entry {
    fn new(
        layouts: &Arc<Layouts>,
        id: MessageId,
        manifest: &Manifest,
        grant: &Grant,
        case: &Case,
    ) -> Result<Option<Entry>, ToolError> {
        let granted = |hook: &str| match &grant.hooks {
            Some(hooks) => hooks.iter().any(|granted| granted == hook),
            None => true,
        };
        let is_hooked = manifest.hooks().contains(&case.hook) && granted(case.hook.name());
        let index = manifest.method_index(&case.service, &case.method);
        let Some(index) = index.filter(|_| is_hooked) else {
            return Ok(None);
        };
        let method = &manifest.methods()[index as usize];
        let granted = |path: &str| {
            let listed = grant.fields.as_ref();
            listed.is_none_or(|fields| fields.iter().any(|granted| granted == path))
        };
        let hook = case.hook;
        let misfit = |error| {
            let method_name = case.full_method();
            let hint = fields::hint(method, hook, &error);
            ToolError::schema(format!(
                "the policy doesn't fit {method_name}: {error}{hint}"
            ))
        };
        let shown = ShownKeys::new(method, hook, |key| {
            let listed = grant.metadata.as_ref();
            listed.is_none_or(|keys| keys.iter().any(|granted| granted == key))
        });
        let shown = shown.to_calls_of(&case.caller).unwrap_or(shown);
        let its = fields::resolve((layouts, id), (manifest, method), hook, granted);
        let Fields::Of { reads, changes } = its.map_err(misfit)? else {
            return Ok(None);
        };
        let projector = Projector::of(reads.with_spare(shown.len()).map_err(misfit)?);
        Ok(Some(Entry {
            method: index,
            projector,
            patcher: Patcher {
                patch: changes,
                keys: method.metadata_changes(case.hook).to_vec(),
                layouts: Arc::clone(layouts),
            },
            shown,
        }))
    }
}

impl Target {
    /// Writes the view of a message.
    pub(crate) fn project(
        &self,
        entry: &Entry,
        message: &Sample,
        view: &mut [u8],
    ) -> Result<usize, ViewError> {
        message.write_view(&entry.projector, &entry.shown, &self.program, view)
    }

    /// The message with a policy's changes.
    pub(crate) fn change(
        &self,
        entry: &Entry,
        message: &Sample,
        effects: &Effects,
    ) -> Result<Sample, Unchanged> {
        message.changed(Some(&entry.patcher), &self.program, effects)
    }
}
