// grpc-cpp: gRPC's own implementation in C++ as a client and a server of the bench: it takes the same key=value arguments, prints the
// same lines and sends the same echoes as the other subjects (benches/src/settings.rs, measure.rs, request.rs).
//
// The client keeps its calls in flight from one thread over one completion queue, the server answers through the callback API: what
// gRPC's own performance guide recommends for each.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "hotel.grpc.pb.h"

namespace {

using Clock = std::chrono::steady_clock;

// Bytes of a message that are accepted: more than the largest of the bench.
constexpr int kMaxMessage = 32 << 20;

// Bytes of a reply.
constexpr size_t kReplyBytes = 8;

struct Settings {
  size_t size = 64;
  size_t inflight = 1;
  size_t sessions = 1;
  std::chrono::microseconds gap{0};
  double secs = 2;
  double warmup = 0.5;
  std::string to;

  void Set(const std::string& arg) {
    const size_t split = arg.find('=');
    if (split == std::string::npos) throw std::runtime_error("`" + arg + "` is not of the form key=value");
    const std::string key = arg.substr(0, split), value = arg.substr(split + 1);
    if (key == "size") {
      size = std::stoul(value);
    } else if (key == "inflight") {
      inflight = std::stoul(value);
    } else if (key == "sessions") {
      sessions = std::stoul(value);
    } else if (key == "gap_us") {
      gap = std::chrono::microseconds(std::stoul(value));
    } else if (key == "secs") {
      secs = std::stod(value);
    } else if (key == "warmup") {
      warmup = std::stod(value);
    } else if (key == "to") {
      to = value;
    } else if (key == "method") {
      if (value != "echo") throw std::runtime_error("this peer calls echo only, not `" + value + "`");
    } else {
      throw std::runtime_error("there is no argument `" + key + "`");
    }
  }
};

class EchoBack final : public hotel::Echo::CallbackService {
  grpc::ServerUnaryReactor* Echo(grpc::CallbackServerContext* context, const hotel::EchoMessage* request,
                                 hotel::EchoMessage* reply) override {
    reply->set_payload(request->payload().substr(0, kReplyBytes));
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

void Serve() {
  EchoBack service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxMessage);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (!server) throw std::runtime_error("the server can't be started");
  std::cout << "ready listen=127.0.0.1:" << port << std::endl;
  server->Wait();
}

// One call in flight, over and over.
struct Worker {
  hotel::Echo::Stub* stub = nullptr;
  Clock::time_point began;
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::ClientAsyncResponseReader<hotel::EchoMessage>> reader;
  hotel::EchoMessage reply;
  grpc::Status status;

  void Begin(const hotel::EchoMessage& request, grpc::CompletionQueue* queue) {
    began = Clock::now();
    context = std::make_unique<grpc::ClientContext>();
    reader = stub->AsyncEcho(context.get(), request, queue);
    reader->Finish(&reply, &status, this);
  }
};

struct Tally {
  std::vector<double> us;
  size_t failed = 0;
  std::string first;
};

// Drives all workers for so long. A call counts if it was answered within the window; the others are awaited.
Tally Phase(const Settings& settings, const hotel::EchoMessage& request, std::vector<Worker>& workers, double secs) {
  Tally tally;
  grpc::CompletionQueue queue;
  const std::string expected = request.payload().substr(0, kReplyBytes);
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(secs));
  size_t inflight = 0;
  for (Worker& worker : workers) {
    worker.Begin(request, &queue);
    ++inflight;
  }
  void* tag = nullptr;
  bool ok = false;
  while (inflight > 0 && queue.Next(&tag, &ok)) {
    Worker& worker = *static_cast<Worker*>(tag);
    const auto ended = Clock::now();
    if (ended <= until) {
      if (!worker.status.ok()) {
        ++tally.failed;
        tally.first = worker.status.error_message();
      } else if (worker.reply.payload() != expected) {
        ++tally.failed;
        tally.first = "the reply is not the one expected";
      } else {
        tally.us.push_back(std::chrono::duration<double, std::micro>(ended - worker.began).count());
      }
    }
    if (settings.gap.count() > 0) std::this_thread::sleep_for(settings.gap);
    if (Clock::now() < until) {
      worker.Begin(request, &queue);
    } else {
      --inflight;
    }
  }
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return tally;
}

void Step(const char* line) {
  std::cout << line << std::endl;
  // The end of standard input counts as a line.
  std::string ignored;
  std::getline(std::cin, ignored);
}

void Call(const Settings& settings) {
  hotel::EchoMessage request;
  std::string payload(settings.size, '\0');
  for (size_t at = 0; at < payload.size(); ++at) payload[at] = static_cast<char>(at % 251 + 1);
  request.set_payload(std::move(payload));

  std::vector<std::unique_ptr<hotel::Echo::Stub>> stubs;
  for (size_t n = 0; n < settings.sessions; ++n) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMaxMessage);
    // Channels of equal arguments would share one connection.
    arguments.SetInt("tollgate.bench.session", static_cast<int>(n));
    const auto channel = grpc::CreateCustomChannel(settings.to, grpc::InsecureChannelCredentials(), arguments);
    stubs.push_back(hotel::Echo::NewStub(channel));
    grpc::ClientContext context;
    hotel::EchoMessage reply;
    const grpc::Status status = stubs.back()->Echo(&context, request, &reply);
    if (!status.ok()) throw std::runtime_error("the first call failed: " + status.error_message());
  }
  std::vector<Worker> workers(settings.inflight);
  for (size_t n = 0; n < workers.size(); ++n) workers[n].stub = stubs[n % stubs.size()].get();

  Phase(settings, request, workers, settings.warmup);
  Step("BEGIN");
  Tally tally = Phase(settings, request, workers, settings.secs);
  Step("END");
  std::sort(tally.us.begin(), tally.us.end());
  const auto quantile = [&](double q) {
    if (tally.us.empty()) return 0.0;
    return tally.us[std::min(static_cast<size_t>(q * static_cast<double>(tally.us.size())), tally.us.size() - 1)];
  };
  const double answered = static_cast<double>(tally.us.size());
  std::printf(
      "{\"secs\": %g, \"ok\": %zu, \"denied\": 0, \"err\": %zu, \"blocked\": 0, \"rps\": %.3f, \"gbytes_s\": %.9f, "
      "\"p50_us\": %.3f, \"p99_us\": %.3f, \"p999_us\": %.3f",
      settings.secs, tally.us.size(), tally.failed, answered / settings.secs,
      answered * static_cast<double>(settings.size) / settings.secs / 1e9, quantile(0.5), quantile(0.99), quantile(0.999));
  if (!tally.first.empty()) std::printf(", \"first_error\": \"%s\"", "a call failed; run the client by itself to see why");
  std::printf("}\n");
  std::fflush(stdout);
  if (!tally.first.empty()) std::cerr << "grpc-cpp: " << tally.first << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string role = argc > 1 ? argv[1] : "";
    if (role != "client" && role != "server") throw std::runtime_error("the first argument is `client` or `server`");
    Settings settings;
    for (int at = 2; at < argc; ++at) settings.Set(argv[at]);
    if (role == "server") {
      Serve();
    } else {
      Call(settings);
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "grpc-cpp: " << error.what() << std::endl;
    return 1;
  }
}
