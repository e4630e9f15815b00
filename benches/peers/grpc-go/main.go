// Command grpc-go is gRPC's own implementation in Go as a client and a server of the bench: it takes the same key=value arguments,
// prints the same lines and sends the same echoes as the other subjects (benches/src/settings.rs, measure.rs, request.rs).
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"tollgate/benches/grpc-go/hotel"
)

// Bytes of a message that are accepted: more than the largest of the bench.
const maxMessage = 32 << 20

// Bytes of a reply.
const replyBytes = 8

type settings struct {
	size, inflight, sessions int
	gap, run, warmup         time.Duration
	to                       string
}

func main() {
	if err := start(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "grpc-go: %v\n", err)
		os.Exit(1)
	}
}

func start(args []string) error {
	if len(args) == 0 || (args[0] != "client" && args[0] != "server") {
		return fmt.Errorf("the first argument is `client` or `server`")
	}
	s := settings{size: 64, inflight: 1, sessions: 1, run: 2 * time.Second, warmup: 500 * time.Millisecond}
	for _, arg := range args[1:] {
		if err := s.set(arg); err != nil {
			return err
		}
	}
	if args[0] == "server" {
		return serve()
	}
	return call(s)
}

func (s *settings) set(arg string) error {
	key, value, ok := strings.Cut(arg, "=")
	if !ok {
		return fmt.Errorf("`%s` is not of the form key=value", arg)
	}
	var err error
	number := func() (n int) {
		n, err = strconv.Atoi(value)
		return n
	}
	seconds := func() time.Duration {
		var secs float64
		secs, err = strconv.ParseFloat(value, 64)
		return time.Duration(secs * float64(time.Second))
	}
	switch key {
	case "size":
		s.size = number()
	case "inflight":
		s.inflight = number()
	case "sessions":
		s.sessions = number()
	case "gap_us":
		s.gap = time.Duration(number()) * time.Microsecond
	case "secs":
		s.run = seconds()
	case "warmup":
		s.warmup = seconds()
	case "to":
		s.to = value
	case "method":
		if value != "echo" {
			err = fmt.Errorf("this peer calls echo only")
		}
	case "cpu":
		err = fmt.Errorf("start it under taskset")
	default:
		err = fmt.Errorf("there is no such argument")
	}
	if err != nil {
		return fmt.Errorf("`%s`: %w", arg, err)
	}
	return nil
}

type echo struct {
	hotel.UnimplementedEchoServer
}

func (echo) Echo(_ context.Context, request *hotel.EchoMessage) (*hotel.EchoMessage, error) {
	return &hotel.EchoMessage{Payload: echoReply(request.Payload)}, nil
}

func echoReply(payload []byte) []byte {
	return payload[:min(len(payload), replyBytes)]
}

func serve() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage))
	hotel.RegisterEchoServer(server, echo{})
	fmt.Printf("ready listen=%s\n", listener.Addr())
	return server.Serve(listener)
}

// What one worker has seen.
type tally struct {
	latencies []time.Duration
	failed    int
	first     error
}

func call(s settings) error {
	payload := make([]byte, s.size)
	for at := range payload {
		payload[at] = byte(at%251) + 1
	}
	var clients []hotel.EchoClient
	for range s.sessions {
		conn, err := grpc.NewClient(s.to, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
		if err != nil {
			return fmt.Errorf("cannot reach %s: %w", s.to, err)
		}
		client := hotel.NewEchoClient(conn)
		if _, err := client.Echo(context.Background(), &hotel.EchoMessage{Payload: payload}); err != nil {
			return fmt.Errorf("the first call failed: %w", err)
		}
		clients = append(clients, client)
	}
	lines := bufio.NewReader(os.Stdin)
	step := func(line string) {
		fmt.Println(line)
		// The end of standard input counts as a line.
		_, _ = lines.ReadString('\n')
	}
	phase(s, clients, payload, s.warmup)
	step("BEGIN")
	tallies := phase(s, clients, payload, s.run)
	step("END")
	result, err := json.Marshal(summary(s, tallies))
	if err != nil {
		return err
	}
	fmt.Println(string(result))
	return nil
}

// One call after the other per worker, until the window ends. A call counts if it was answered within it.
func phase(s settings, clients []hotel.EchoClient, payload []byte, window time.Duration) []tally {
	until := time.Now().Add(window)
	tallies := make([]tally, s.inflight)
	var workers sync.WaitGroup
	for n := range tallies {
		workers.Add(1)
		go func() {
			defer workers.Done()
			tallies[n].work(s, clients[n%len(clients)], payload, until)
		}()
	}
	workers.Wait()
	return tallies
}

func (t *tally) work(s settings, client hotel.EchoClient, payload []byte, until time.Time) {
	expected := echoReply(payload)
	request := &hotel.EchoMessage{Payload: payload}
	for began := time.Now(); began.Before(until); {
		reply, err := client.Echo(context.Background(), request)
		ended := time.Now()
		if err == nil && !bytes.Equal(reply.Payload, expected) {
			err = fmt.Errorf("the reply is not the one expected")
		}
		if ended.After(until) {
			return
		}
		if err == nil {
			t.latencies = append(t.latencies, ended.Sub(began))
		} else {
			t.failed++
			t.first = err
		}
		if s.gap > 0 {
			time.Sleep(s.gap)
		}
		began = time.Now()
	}
}

func summary(s settings, tallies []tally) map[string]any {
	var all []time.Duration
	failed := 0
	var first error
	for _, t := range tallies {
		all = append(all, t.latencies...)
		failed += t.failed
		if t.first != nil {
			first = t.first
		}
	}
	slices.Sort(all)
	us := func(quantile float64) float64 {
		if len(all) == 0 {
			return 0
		}
		at := min(int(quantile*float64(len(all))), len(all)-1)
		return float64(all[at].Nanoseconds()) / 1e3
	}
	secs := s.run.Seconds()
	result := map[string]any{
		"secs": secs, "ok": len(all), "denied": 0, "err": failed, "blocked": 0,
		"rps":      float64(len(all)) / secs,
		"gbytes_s": float64(len(all)) * float64(s.size) / secs / 1e9,
		"p50_us":   us(0.5), "p99_us": us(0.99), "p999_us": us(0.999),
	}
	if first != nil {
		result["first_error"] = first.Error()
	}
	return result
}
