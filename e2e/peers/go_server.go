// A server by Go's net/http, for stories: it sums up what it gets, gives as much as is wanted, and hangs.
//
// Says "h2c true" where it speaks HTTP/2 without TLS as well (Go 1.24 and later), then "listening PORT". A line
// "shutdown" on its standard input has it shut down as Go's servers do, and say "shut"; with the end of that it ends.
// With an argument, chain and key in one PEM, it speaks TLS.
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"reflect"
	"strconv"
	"sync/atomic"
	"time"
)

// Requests to /endless whose clients have gone.
var ended int32

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	handlers := http.NewServeMux()
	handlers.HandleFunc("/hello", hello)
	handlers.HandleFunc("/sum", sum)
	handlers.HandleFunc("/bytes", bytes)
	handlers.HandleFunc("/slow", slow)
	handlers.HandleFunc("/endless", endless)
	handlers.HandleFunc("/refuse", refuse)
	server := &http.Server{Handler: named(handlers)}
	say("h2c", allowUnencrypted(server))
	if len(os.Args) > 1 {
		go server.ServeTLS(listener, os.Args[1], os.Args[1])
	} else {
		go server.Serve(listener)
	}
	say("listening", listener.Addr().(*net.TCPAddr).Port)
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		limit, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		if err := server.Shutdown(limit); err != nil {
			say("failed to shut down:", err)
		}
		cancel()
		say("shut")
	}
}

func say(words ...any) {
	fmt.Println(words...)
}

// allowUnencrypted has the server speak HTTP/2 without TLS, where this Go can: by reflection, since Debian 12's has no
// such field.
func allowUnencrypted(server *http.Server) bool {
	field := reflect.ValueOf(server).Elem().FieldByName("Protocols")
	if !field.IsValid() {
		return false
	}
	field.Set(reflect.New(field.Type().Elem()))
	protocols := field.Interface().(interface {
		SetHTTP1(bool)
		SetHTTP2(bool)
		SetUnencryptedHTTP2(bool)
	})
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return true
}

// named says with each answer which protocol its request came by.
func named(handlers http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Proto", r.Proto)
		handlers.ServeHTTP(w, r)
	})
}

func hello(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Link", "</a.css>")
	w.WriteHeader(http.StatusEarlyHints)
	w.Header().Del("Link")
	fmt.Fprintln(w, "hello")
}

// sum tells method, length, announced length (-1 where none was, and for "/sum?short") and SHA-256 of a body, and gives
// its trailer X-Tell back as one.
func sum(w http.ResponseWriter, r *http.Request) {
	hash := sha256.New()
	length, err := io.Copy(hash, r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	announced := r.ContentLength
	if r.URL.RawQuery == "short" {
		// Whoever handed it on may have had all of it, and so its length.
		announced = -1
	}
	w.Header().Set("Trailer", "X-Told")
	fmt.Fprintf(w, "%s %d %d %x\n", r.Method, length, announced, hash.Sum(nil))
	w.Header().Set("X-Told", r.Trailer.Get("X-Tell"))
}

// bytes gives as many as the query says, which do not repeat in any length that a buffer has.
func bytes(w http.ResponseWriter, r *http.Request) {
	length, _ := strconv.Atoi(r.URL.RawQuery)
	w.Header().Set("Content-Length", r.URL.RawQuery)
	piece := make([]byte, 16<<10)
	for at := 0; at < length && r.Method != "HEAD"; at += len(piece) {
		piece = piece[:min(len(piece), length-at)]
		for index := range piece {
			piece[index] = byte(uint32(at+index) * 2654435761 >> 13)
		}
		if _, err := w.Write(piece); err != nil {
			return
		}
	}
}

func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}

// slow answers by half, and by the other half some milliseconds later.
func slow(w http.ResponseWriter, r *http.Request) {
	wait, _ := strconv.Atoi(r.URL.RawQuery)
	io.WriteString(w, "begun ")
	w.(http.Flusher).Flush()
	time.Sleep(time.Duration(wait) * time.Millisecond)
	io.WriteString(w, "done\n")
}

// endless goes on until its client has gone, with some milliseconds between any two pieces.
func endless(w http.ResponseWriter, r *http.Request) {
	pause, _ := strconv.Atoi(r.URL.RawQuery)
	piece := make([]byte, 16<<10)
	for r.Context().Err() == nil {
		if _, err := w.Write(piece); err != nil {
			break
		}
		time.Sleep(time.Duration(pause) * time.Millisecond)
	}
	say("ended", atomic.AddInt32(&ended, 1))
}

// refuse answers before a byte of the body was read, and so without "100 Continue".
func refuse(w http.ResponseWriter, r *http.Request) {
	http.Error(w, "not this", http.StatusForbidden)
}
