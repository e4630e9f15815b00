//! The live view's environment: keys, time, the daemon, and a terminal that is restored afterwards.
//!
//! A guard or the panic hook leaves the alternate screen and raw mode when the view ends by a key,
//! a signal, a failure or a panic. (After SIGKILL, `reset` helps.) Another thread asks the daemon,
//! so keys work while the daemon doesn't answer. There is one request at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tollgate_shm_abi::status::Code;

use crate::failure::Failure;
use crate::limits::LOOK_UP;
use crate::top::ask::Asker;
use crate::top::sample::Sample;
use crate::top::screen::{Key, Model};

/// Restores the terminal.
struct Borrowed;

impl Drop for Borrowed {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Runs the view until the user quits.
pub(super) fn run(daemon: Asker, interval: Duration, mut model: Model) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(Code::UNAVAILABLE, format_args!("the terminal: {error}"))
    };
    let told = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&told)).map_err(failed)?;
    }
    let _borrowed = Borrowed;
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let (wanted, answers) = asker(daemon);
    follow(
        &mut terminal,
        interval,
        &mut model,
        &told,
        &wanted,
        &answers,
    )
    .map_err(failed)
}

/// A thread that asks the daemon once for each message.
fn asker(daemon: Asker) -> (Sender<()>, Receiver<Result<Sample, Failure>>) {
    let (wanted, next) = channel::<()>();
    let (answer, answers) = channel();
    std::thread::spawn(move || {
        while next.recv().is_ok() {
            if answer.send(daemon.ask()).is_err() {
                return;
            }
        }
    });
    (wanted, answers)
}

fn follow(
    terminal: &mut DefaultTerminal,
    interval: Duration,
    model: &mut Model,
    told: &AtomicBool,
    wanted: &Sender<()>,
    answers: &Receiver<Result<Sample, Failure>>,
) -> std::io::Result<()> {
    let (mut due, mut is_asked) = (Instant::now() + interval, false);
    terminal.draw(|frame| model.draw(frame))?;
    while !told.load(Ordering::Relaxed) {
        let mut is_new = false;
        if event::poll(LOOK_UP)? {
            match event::read()? {
                Event::Key(event) => match key(&event) {
                    Some(key) if !model.press(key) => return Ok(()),
                    pressed => is_new = pressed.is_some(),
                },
                // The terminal has another size.
                _ => is_new = true,
            }
        }
        match answers.try_recv() {
            Ok(Ok(sample)) => (is_asked, is_new) = (false, hear(model, sample)),
            Ok(Err(failure)) => {
                model.trouble = Some(failure.sentence());
                (is_asked, is_new) = (false, true);
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                return Err(std::io::Error::other(
                    "the thread that asks the daemon has ended",
                ));
            }
        }
        // A paused view isn't updated, so the daemon isn't asked.
        if !is_asked && !model.paused && Instant::now() >= due {
            is_asked = wanted.send(()).is_ok();
            due = Instant::now() + interval;
        }
        if is_new {
            terminal.draw(|frame| model.draw(frame))?;
        }
    }
    Ok(())
}

/// Handles an answer. If it was asked for before a pause and comes during it, it isn't shown.
fn hear(model: &mut Model, sample: Sample) -> bool {
    if !model.paused {
        model.add(sample);
    }
    !model.paused
}

fn key(event: &KeyEvent) -> Option<Key> {
    if event.kind == KeyEventKind::Release {
        return None;
    }
    let is_control = event.modifiers.contains(KeyModifiers::CONTROL);
    Some(match event.code {
        KeyCode::Char('c') if is_control => Key::Quit,
        KeyCode::Char('q') | KeyCode::Esc => Key::Quit,
        KeyCode::Char('s') => Key::Sort,
        KeyCode::Char('t') => Key::Tenant,
        KeyCode::Char('p' | ' ') => Key::Pause,
        KeyCode::Char('?') => Key::Help,
        KeyCode::Down | KeyCode::Char('j') => Key::Scroll(1),
        KeyCode::Up | KeyCode::Char('k') => Key::Scroll(-1),
        KeyCode::PageDown => Key::Scroll(10),
        KeyCode::PageUp => Key::Scroll(-10),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_what_the_help_says() {
        let plain = |code| key(&KeyEvent::new(code, KeyModifiers::NONE));
        for (code, expected) in [
            (KeyCode::Esc, Some(Key::Quit)),
            (KeyCode::Char('q'), Some(Key::Quit)),
            (KeyCode::Char('c'), None),
            (KeyCode::Char('s'), Some(Key::Sort)),
            (KeyCode::Char(' '), Some(Key::Pause)),
            (KeyCode::Char('?'), Some(Key::Help)),
            (KeyCode::Up, Some(Key::Scroll(-1))),
            (KeyCode::PageDown, Some(Key::Scroll(10))),
        ] {
            assert_eq!(plain(code), expected, "{code:?}");
        }
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(key(&control), Some(Key::Quit));
    }
}
