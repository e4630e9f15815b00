//! Calls: typed functions over the C library. They have their own header, so programs that only
//! marshal don't need the library.
//!
//! ```text
//!   unary        S_M_call, S_M_start                S_M(call, request, user)  ──▶ S_M_reply
//!   streams      S_M_open, S_M_send, S_M_receive    S_M(call, user): S_M_next ──▶ S_M_respond or S_M_reply
//! ```

use crate::c::names::{Names, member};
use crate::c::service::methods;
use crate::model::{Method, Service};
use crate::text::Text;

/// Emits one service's functions.
pub(crate) fn emit(service: &Service, names: &Names, text: &mut Text) {
    let name = names.of(&service.name);
    let mut functions = Functions {
        service: &name,
        names,
        text,
    };
    functions.begin(
        &format!(
            "Binds {} for calling, as tollgate_client_new does.",
            service.name
        ),
        "tollgate_code",
        "_client",
        "tollgate_session *session, const char *target, tollgate_client **client, tollgate_status *status",
    );
    functions.end(&[format!(
        "return tollgate_client_new(session, &{name}, target, client, status);"
    )]);
    let own = methods(service);
    for (method, name) in service.methods.iter().zip(&own) {
        functions.calling(method, name);
    }
    for (method, name) in service.methods.iter().zip(&own) {
        functions.answering(method, name);
    }
    functions.handlers(service, &own);
}

/// The functions of one service under construction.
struct Functions<'a> {
    service: &'a str,
    names: &'a Names,
    text: &'a mut Text,
}

const STATUS: &str = "tollgate_status *status";
const OPTIONS: &str = "const tollgate_call_options *options";

impl Functions<'_> {
    /// Begins a function of the service; `name` is the part after the service's name.
    fn begin(&mut self, about: &str, result: &str, name: &str, parameters: &str) {
        let name = format!("{}{name}", self.service);
        self.text.line("");
        self.text.line(format!("/* {about} */"));
        self.text
            .line(format!("static inline {result} {name}({parameters})"));
        self.text.line("{");
    }

    fn types(&self, method: &Method) -> (String, String) {
        (self.names.of(&method.input), self.names.of(&method.output))
    }

    fn end(&mut self, body: &[String]) {
        for line in body {
            self.text.line(line);
        }
        self.text.line("}");
    }

    /// Writes the functions for a method's caller.
    fn calling(&mut self, method: &Method, name: &str) {
        let (input, output) = self.types(method);
        let index = format!("{}{name}", self.service);
        let request = format!("const {input}_value *request");
        let source =
            format!("tollgate_source source = tollgate_source_of({input}_write_any, request);");
        if !method.client_streaming && !method.server_streaming {
            self.begin(
                "Calls it and waits for the reply; the view is of the message, which is the caller's to free.",
                "tollgate_code",
                &format!("{name}_call"),
                &format!("const tollgate_client *client, {request}, {OPTIONS}, {output}_view *view, tollgate_message **reply, {STATUS}"),
            );
            self.end(&[
                source.clone(),
                format!("tollgate_code code = tollgate_unary(client, {index}, &source, options, reply, status);"),
                "if (code == TOLLGATE_OK) {".to_owned(),
                format!("*view = {output}_of(*reply);"),
                "}".to_owned(),
                "return code;".to_owned(),
            ]);
            self.begin(
                &format!("Starts a call, as tollgate_unary_start does; {output}_of gives the view of its reply."),
                "tollgate_code",
                &format!("{name}_start"),
                &format!("const tollgate_client *client, {request}, {OPTIONS}, tollgate_done_fn done, void *user, tollgate_call **call, {STATUS}"),
            );
            return self.end(&[
                source,
                format!("return tollgate_unary_start(client, {index}, &source, options, done, user, call, status);"),
            ]);
        }
        if method.client_streaming {
            self.begin(
                "Opens a call, to which requests are then sent.",
                "tollgate_code",
                &format!("{name}_open"),
                &format!(
                    "const tollgate_client *client, {OPTIONS}, tollgate_call **call, {STATUS}"
                ),
            );
            self.end(&[format!(
                "return tollgate_call_open(client, {index}, NULL, false, options, call, status);"
            )]);
            self.send(
                &format!("{name}_send"),
                "Sends a request.",
                &input,
                "request",
            );
        } else {
            self.begin(
                "Opens a call with its request.",
                "tollgate_code",
                &format!("{name}_open"),
                &format!("const tollgate_client *client, {request}, {OPTIONS}, tollgate_call **call, {STATUS}"),
            );
            self.end(&[
                source,
                format!("return tollgate_call_open(client, {index}, &source, true, options, call, status);"),
            ]);
        }
        self.receive(
            &format!("{name}_receive"),
            "The next response, as tollgate_call_receive has it; the view is of the message, which is the caller's to free.",
            &output,
        );
    }

    /// Writes the functions for a method's server.
    fn answering(&mut self, method: &Method, name: &str) {
        let (input, output) = self.types(method);
        if method.client_streaming {
            self.receive(
                &format!("{name}_next"),
                "The next request, as tollgate_call_receive has it; the view is of the message, which is the caller's to free.",
                &input,
            );
        }
        if method.server_streaming {
            return self.send(
                &format!("{name}_respond"),
                "Sends a response; tollgate_call_finish ends them.",
                &output,
                "response",
            );
        }
        self.begin(
            "Answers, as tollgate_call_reply does; metadata and trailers may be NULL.",
            "tollgate_code",
            &format!("{name}_reply"),
            &format!(
                "tollgate_call *call, const {output}_value *reply, const tollgate_metadata *metadata, const tollgate_metadata *trailers, {STATUS}"
            ),
        );
        self.end(&[
            format!("tollgate_source source = tollgate_source_of({output}_write_any, reply);"),
            "return tollgate_call_reply(call, &source, metadata, trailers, status);".to_owned(),
        ]);
    }

    fn send(&mut self, function: &str, about: &str, message: &str, parameter: &str) {
        self.begin(
            about,
            "tollgate_code",
            function,
            &format!(
                "tollgate_call *call, const {message}_value *{parameter}, uint32_t flags, {STATUS}"
            ),
        );
        self.end(&[
            format!(
                "tollgate_source source = tollgate_source_of({message}_write_any, {parameter});"
            ),
            "return tollgate_call_send(call, &source, flags, status);".to_owned(),
        ]);
    }

    fn receive(&mut self, function: &str, about: &str, message: &str) {
        self.begin(
            about,
            "tollgate_code",
            function,
            &format!("tollgate_call *call, uint32_t flags, {message}_view *view, tollgate_message **message, {STATUS}"),
        );
        self.end(&[
            "tollgate_code code = tollgate_call_receive(call, flags, message, status);".to_owned(),
            "if (code == TOLLGATE_OK) {".to_owned(),
            format!("*view = {message}_of(*message);"),
            "}".to_owned(),
            "return code;".to_owned(),
        ]);
    }

    /// Writes the table of handlers, and the function that serves it.
    fn handlers(&mut self, service: &Service, own: &[String]) {
        let name = self.service.to_owned();
        let table = format!("{name}_handlers");
        self.text.line("");
        self.text.line(format!(
            "/* What handles calls of {}; NULL: UNIMPLEMENTED. A request's view ends with its handler. */",
            service.name
        ));
        self.text.line(format!("typedef struct {table} {{"));
        for method in &service.methods {
            let request = match method.client_streaming {
                true => String::new(),
                false => format!("{}_view request, ", self.names.of(&method.input)),
            };
            self.text.line(format!(
                "void (*{})(tollgate_call *call, {request}void *user);",
                member(&method.name)
            ));
        }
        self.text.line("/* Handed to each of them. */");
        self.text.line("void *user_;");
        self.text.line(format!("}} {table};"));
        for (method, name) in service.methods.iter().zip(own) {
            self.trampoline(method, name, &table);
        }
        let count = service.methods.len();
        self.begin(
            "Serves it until the session ends, as tollgate_session_add_service does. The table has to live as long.",
            "tollgate_code",
            "_serve",
            &format!("tollgate_session *session, const {table} *handlers, {STATUS}"),
        );
        // C has no empty arrays.
        let mut body = vec![format!("tollgate_handler_fn all[{}];", count.max(1))];
        for (at, own) in own.iter().enumerate() {
            body.push(format!("all[{at}] = {name}{own}_handle_;"));
        }
        if count == 0 {
            body.push("all[0] = NULL;".to_owned());
        }
        body.push(format!(
            "return tollgate_session_add_service(session, &{name}, all, {count}, (void *)handlers, status);"
        ));
        self.end(&body);
    }

    /// Writes the adapter from the library's handler type to a method's.
    fn trampoline(&mut self, method: &Method, name: &str, table: &str) {
        let field = member(&method.name);
        self.begin(
            &format!("Hands a call to the handler of {}.", method.name),
            "void",
            &format!("{name}_handle_"),
            "tollgate_call *call, void *user",
        );
        let mut body = vec![
            format!("const {table} *handlers = (const {table} *)user;"),
            format!("if (handlers->{field} == NULL) {{"),
            "tollgate_unimplemented_(call);".to_owned(),
            "return;".to_owned(),
            "}".to_owned(),
        ];
        // Without the parentheses, a macro with the handler's name would expand here.
        if method.client_streaming {
            body.push(format!("(handlers->{field})(call, handlers->user_);"));
        } else {
            let input = self.names.of(&method.input);
            body.extend([
                "{".to_owned(),
                "tollgate_message *message;".to_owned(),
                "if (tollgate_call_receive(call, TOLLGATE_NONBLOCK, &message, NULL) == TOLLGATE_OK) {".to_owned(),
                // In C++ it is freed, too, if the handler throws.
                format!("TOLLGATE_THEN_FREE_(message, (handlers->{field})(call, {input}_of(message), handlers->user_));"),
                "}".to_owned(),
                "}".to_owned(),
            ]);
        }
        self.end(&body);
    }
}

/// Suffixes of the names that [`emit_message`] defines.
pub(crate) const OF_MESSAGE: [&str; 3] = ["_ANY_", "_write_any", "_of"];

/// Writes the functions that calls of a message type need: its writer for the library, and the view
/// of a received message. Other packages' headers may have the same ones.
pub(crate) fn emit_message(message: &str, text: &mut Text) {
    text.line("");
    text.line(format!("#ifndef {message}_ANY_"));
    text.line(format!("#define {message}_ANY_"));
    text.line(format!("/* {message}_write for any value. */"));
    text.line(format!(
        "static inline tollgate_error {message}_write_any(tollgate_writer *w, const void *m)"
    ));
    text.line("{");
    text.line(format!(
        "return {message}_write(w, (const {message}_value *)m);"
    ));
    text.line("}");
    text.line("");
    text.line("/* The view of a received message. */");
    text.line(format!(
        "static inline {message}_view {message}_of(const tollgate_message *message)"
    ));
    text.line("{");
    text.line("tollgate_bytes block = tollgate_message_block(message);");
    text.line(format!("return {message}_read(block.data, block.len);"));
    text.line("}");
    text.line("#endif");
}
