//! The table against `admin.proto` and the book, and each request against each principal.
#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use prost_reflect::DescriptorPool;
use tollgate_shm_abi::status::Code;

use super::*;

/// Answers everything, and remembers who asked for what.
#[derive(Default)]
struct Deaf {
    reached: RefCell<Vec<&'static str>>,
}

macro_rules! deaf {
    ($($server:ident $service:ident $wrapper:ident {
        $($kind:ident $function:ident $method:ident ($request:ty) $response:ident
            [$operator:ident $owner:ident $viewer:ident $application:ident])*
    })*) => {
        impl Handler for Deaf {
            $($(async fn $function(&self, _: Authorized<$request>) -> Result<$response, Status> {
                self.reached.borrow_mut().push(stringify!($method));
                Ok($response::default())
            })*)*
        }
    };
}

operations!(deaf);

fn of_tenant(role: Role) -> Principal {
    Principal::Tenant {
        tenant: "acme".to_owned(),
        credential: "default".to_owned(),
        role,
    }
}

fn principals() -> [Principal; 5] {
    [
        Principal::Operator {
            who: "user 0".to_owned(),
        },
        of_tenant(Role::Owner),
        of_tenant(Role::Viewer),
        of_tenant(Role::Application),
        of_tenant(Role::Unspecified),
    ]
}

/// Carries out an ask. The handler of these tests never waits.
fn outcome(handler: &Deaf, principal: &Principal, ask: Ask) -> Result<Answer, Status> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime
        .unwrap()
        .block_on(carry_out(handler, principal, ask))
}

#[test]
fn every_request_of_the_definition_has_a_row_and_every_row_its_request() {
    let pool = DescriptorPool::decode(crate::DESCRIPTOR_SET).unwrap();
    let services = pool
        .services()
        .filter(|service| service.package_name() == "tollgate.admin.v1");
    let methods = services.flat_map(|service| {
        let methods = service
            .methods()
            .map(|method| method.full_name().to_owned());
        methods.collect::<Vec<_>>()
    });
    let rows = ALL
        .iter()
        .map(|row| format!("tollgate.admin.v1.{}.{}", row.service, row.method));
    assert_eq!(methods.collect::<BTreeSet<_>>(), rows.collect());
}

#[test]
fn each_request_of_each_principal_reaches_the_handler_or_is_refused_as_its_row_says() {
    for principal in principals() {
        for (row, ask) in ALL.iter().zip(one_of_each()) {
            let handler = Deaf::default();
            let outcome = outcome(&handler, &principal, ask);
            let reached = handler.reached.take();
            match row.rights.of(&principal) {
                Reach::Any | Reach::Own => {
                    assert!(outcome.is_ok(), "{principal:?} {row:?}: {outcome:?}");
                    assert_eq!(reached, [row.method]);
                }
                Reach::No => {
                    let refused = outcome.unwrap_err();
                    assert_eq!(
                        refused.code,
                        Code::PERMISSION_DENIED,
                        "{principal:?} {row:?}"
                    );
                    assert!(refused.message.contains(row.method), "{refused}");
                    assert!(reached.is_empty());
                }
            }
        }
    }
}

/// What a request is about, set through its [`Scope`].
fn about(ask: &mut Ask, name: &str, is_provider: bool, part: Option<Party>) -> bool {
    macro_rules! scope_of {
        ($($server:ident $service:ident $wrapper:ident {
            $($kind:ident $function:ident $method:ident ($request:ty) $response:ident
                [$operator:ident $owner:ident $viewer:ident $application:ident])*
        })*) => {
            match ask {
                $($(Ask::$method(request) => request.scope(),)*)*
            }
        };
    }
    match operations!(scope_of) {
        Scope::Daemon => false,
        Scope::Tenant(tenant) => {
            name.clone_into(tenant);
            !is_provider && part.is_none()
        }
        Scope::Owner { owner, party } => {
            *owner = Some(Owner {
                tenant: name.to_owned(),
                provider: is_provider,
            });
            match (party, part) {
                (Some(party), Some(part)) => *party = part.into(),
                (None, Some(_)) => return false,
                (_, None) => {}
            }
            true
        }
    }
}

#[test]
fn a_tenant_reaches_nothing_of_others_and_of_the_provider() {
    let long = "a".repeat(10_000);
    let others = [
        "evil",
        "*",
        "Acme",
        "acme ",
        "ac\u{440}e",
        "acme/..",
        "a\u{0}",
        "acme@1",
        &long,
    ];
    let mut tried = 0;
    for role in [Role::Owner, Role::Viewer] {
        let principal = of_tenant(role);
        let try_all = |name: &str, is_provider, part, tried: &mut usize| {
            for (row, mut ask) in ALL.iter().zip(one_of_each()) {
                if row.rights.of(&principal) != Reach::Own
                    || !about(&mut ask, name, is_provider, part)
                {
                    continue;
                }
                let handler = Deaf::default();
                let refused = outcome(&handler, &principal, ask).unwrap_err();
                assert!(handler.reached.take().is_empty(), "{row:?} {name}");
                *tried += 1;
                if is_provider || part.is_some() {
                    assert_eq!(refused.code, Code::PERMISSION_DENIED, "{row:?}");
                } else {
                    // What the store says of a tenant that doesn't exist.
                    let words = format!("there is no tenant {name:?}");
                    assert_eq!(refused, Status::new(Code::NOT_FOUND, words), "{row:?}");
                }
            }
        };
        for name in others {
            try_all(name, false, None, &mut tried);
        }
        for name in ["acme", "evil", ""] {
            try_all(name, true, None, &mut tried);
            for part in [Party::ProviderPre, Party::ProviderPost] {
                try_all(name, false, Some(part), &mut tried);
            }
        }
    }
    assert!(tried > 200, "{tried}");
}

#[test]
fn an_own_tenant_is_filled_in() {
    let row = ALL.iter().find(|row| row.method == "ShowPolicy").unwrap();
    let request = ShowPolicyRequest::default();
    let request = authorize(&of_tenant(Role::Viewer), row.method, &row.rights, request).unwrap();
    assert_eq!(request.owner.as_ref().unwrap().tenant, "acme");
    // An operator's request stays as it is.
    let operator = Principal::Operator {
        who: "user 0".to_owned(),
    };
    let request = ShowPolicyRequest::default();
    let request = authorize(&operator, row.method, &row.rights, request).unwrap();
    assert_eq!(request.owner, None);
}

#[test]
fn requests_about_the_whole_daemon_are_nobodys_own() {
    for (row, mut ask) in ALL.iter().zip(one_of_each()) {
        let is_daemons = !about(&mut ask, "acme", false, None);
        let Rights {
            owner,
            viewer,
            application,
            ..
        } = row.rights;
        let own = [owner, viewer, application].contains(&Reach::Own);
        assert!(!(is_daemons && own), "{row:?}");
        let any = [owner, viewer, application].contains(&Reach::Any);
        assert!(!any, "{row:?}");
    }
}

/// `TOLLGATE_BLESS=1` rewrites the table.
#[test]
fn the_book_has_the_table() {
    const BEGIN: &str = "<!-- rights -->\n";
    const END: &str = "<!-- end -->";
    let page =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/reference/administration.md");
    let found = std::fs::read_to_string(&page).unwrap();
    let (before, rest) = found.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let reach = |reach| match reach {
        Reach::Any => "yes",
        Reach::Own => "own tenant",
        Reach::No => "no",
    };
    let rows = ALL.iter().map(|row| {
        let Rights {
            operator,
            owner,
            viewer,
            application,
        } = row.rights;
        let [operator, owner, viewer, application] =
            [operator, owner, viewer, application].map(reach);
        let (service, method) = (row.service, row.method);
        format!("| `{service}` | `{method}` | {operator} | {owner} | {viewer} | {application} |\n")
    });
    let table = format!(
        "\n| service | request | operator | owner | viewer | application |\n|---|---|---|---|---|---|\n{}\n",
        rows.collect::<String>()
    );
    let wanted = format!("{before}{BEGIN}{table}{END}{after}");
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        std::fs::write(&page, &wanted).unwrap();
    }
    assert!(
        found == wanted || std::env::var_os("TOLLGATE_BLESS").is_some(),
        "bless {page:?}"
    );
}
