//! Services: their declarations for the daemon, stubs that call them, and classes that serve them.
//!
//! Names are those of gRPC: `<Service>Stub(channel)`, `<Service>Servicer`,
//! `add_<Service>Servicer_to_server`. Each exists for threads, and with `Async` in its name for
//! asyncio. Only annotations name the package tollgate: a module with services can be imported
//! without it.

use super::Module;
use super::names::Attributes;
use crate::model::{Method, Service};

/// The differences between threads and asyncio.
struct Flavor {
    is_async: bool,
    /// The module of the library's types.
    library: &'static str,
    /// The keyword before `def`.
    def: &'static str,
    iterator: &'static str,
    what: &'static str,
}

const SYNC: Flavor = Flavor {
    is_async: false,
    library: "_tollgate",
    def: "def",
    iterator: "Iterator",
    what: "",
};
const ASYNC: Flavor = Flavor {
    is_async: true,
    library: "_aio",
    def: "async def",
    iterator: "AsyncIterator",
    what: " with asyncio",
};

/// The channel's function that makes a method's callable, and the callable's type.
fn callable(method: &Method) -> (&'static str, &'static str) {
    match (method.client_streaming, method.server_streaming) {
        (false, false) => ("unary_unary", "UnaryUnary"),
        (false, true) => ("unary_stream", "UnaryStream"),
        (true, false) => ("stream_unary", "StreamUnary"),
        (true, true) => ("stream_stream", "StreamStream"),
    }
}

/// The methods' attributes, each unique.
fn attributes(service: &Service) -> Vec<(String, &Method)> {
    let mut taken = Attributes::of_service();
    let methods = service.methods.iter();
    methods.map(|m| (taken.take(&m.name), m)).collect()
}

impl Module<'_> {
    pub(super) fn service(&mut self, service: &Service) {
        self.text.lines(["", ""]);
        self.text.line(format!(
            "{} = _tb.Service(",
            self.names.service(&service.name).table
        ));
        self.text.line(format!("\"{}\",", service.name));
        self.text.line("(");
        for (index, method) in service.methods.iter().enumerate() {
            let flag = |on| if on { "True" } else { "False" };
            self.text.line("_tb.Method(");
            self.text.line(format!("{index},"));
            self.text.line(format!("\"{}\",", method.name));
            self.text
                .line(format!("\"{}/{}\",", service.name, method.name));
            self.text
                .line(format!("lambda: {},", self.reference(&method.input)));
            self.text
                .line(format!("lambda: {},", self.reference(&method.output)));
            self.text
                .line(format!("{},", flag(method.client_streaming)));
            self.text
                .line(format!("{},", flag(method.server_streaming)));
            self.text.line("),");
        }
        self.text.line("),");
        self.text.line("DESCRIPTOR_SET,");
        self.text.line(format!("\"{}\",", service.hash));
        self.text.line(")");
        self.stub(service, &SYNC);
        self.stub(service, &ASYNC);
        self.servicer(service, &SYNC);
        self.servicer(service, &ASYNC);
        self.hidden.clear();
        self.registration(service);
    }

    fn stub(&mut self, service: &Service, flavor: &Flavor) {
        let (names, library) = (self.names.service(&service.name), flavor.library);
        let (name, stub) = (&names.table, names.stub(flavor.is_async));
        self.text.lines(["", ""]);
        self.text.line(format!("class {stub}:"));
        self.text.indent();
        self.text.line(format!(
            "\"\"\"Calls `{}`{}.\"\"\"",
            service.name, flavor.what
        ));
        self.text.line("");
        let methods = attributes(service);
        self.hidden = methods.iter().map(|(name, _)| name.clone()).collect();
        for (attribute, method) in &methods {
            let (_, of) = callable(method);
            let input = self.reference(&method.input);
            let output = self.reference_view(&method.output);
            self.text
                .line(format!("{attribute}: {library}.{of}[{input}, {output}]"));
        }
        self.text.line("");
        self.text.line(format!(
            "def __init__(self, channel: {library}.Channel) -> None:"
        ));
        self.text.indent();
        if methods.is_empty() {
            self.text.line("pass");
        }
        for (index, (attribute, method)) in methods.iter().enumerate() {
            let (make, _) = callable(method);
            self.text.line(format!(
                "self.{attribute} = channel.{make}({name}, {name}.methods[{index}])"
            ));
        }
        self.text.dedent();
        self.text.dedent();
    }

    fn servicer(&mut self, service: &Service, flavor: &Flavor) {
        let (names, library) = (self.names.service(&service.name), flavor.library);
        let servicer = names.servicer(flavor.is_async);
        self.text.lines(["", ""]);
        self.text.line(format!("class {servicer}:"));
        self.text.indent();
        self.text.line(format!(
            "\"\"\"Serves `{}`{}; a method that isn't overridden is UNIMPLEMENTED.\"\"\"",
            service.name, flavor.what
        ));
        for (attribute, method) in attributes(service) {
            let request = self.reference_view(&method.input);
            let reply = self.reference(&method.output);
            let iterator = flavor.iterator;
            let request = match method.client_streaming {
                true => format!("request_iterator: _typing.{iterator}[{request}]"),
                false => format!("request: {request}"),
            };
            // A generator is called, not awaited.
            let (def, reply) = match method.server_streaming {
                true => ("def", format!("_typing.{iterator}[{reply}]")),
                false => (flavor.def, reply),
            };
            self.text.line("");
            self.text.line(format!(
                "{def} {attribute}(self, {request}, context: {library}.ServicerContext) -> {reply}:"
            ));
            self.text.indent();
            let error = self.builtin("NotImplementedError");
            self.text.line(format!(
                "raise {error}(\"{}/{} isn't implemented\")",
                service.name, method.name
            ));
            self.text.dedent();
        }
        if service.methods.is_empty() {
            self.text.lines(["", "pass"]);
        }
        self.text.dedent();
    }

    /// Writes the function that adds a servicer to a server.
    fn registration(&mut self, service: &Service) {
        let names = self.names.service(&service.name);
        let (one, other) = (&names.servicer, &names.async_servicer);
        self.text.lines(["", ""]);
        self.text.line(format!("def {}(", names.adder));
        self.text.indent();
        self.text
            .line(format!("servicer: _typing.Union[{one}, {other}],"));
        self.text
            .line("server: _typing.Union[_tollgate.Server, _aio.Server],");
        self.text.dedent();
        self.text.line(") -> None:");
        self.text.indent();
        self.text.line(format!(
            "\"\"\"Has a server serve `{}`.\"\"\"",
            service.name
        ));
        let handlers = attributes(service);
        let handlers: Vec<_> = handlers
            .iter()
            .map(|(attribute, _)| format!("servicer.{attribute}, "))
            .collect();
        self.text.line(format!(
            "server.add_service({}, ({}))",
            names.table,
            handlers.concat().trim_end()
        ));
        self.text.dedent();
    }
}
