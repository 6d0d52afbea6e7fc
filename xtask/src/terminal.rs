//! The user's terminal, for `lab shell`.

use std::io::{IsTerminal, Stdin};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use bareverbs_lab::TerminalSize;
use nix::libc;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

nix::ioctl_read_bad!(window_size, libc::TIOCGWINSZ, libc::winsize);

/// The terminal's size, or 80 × 24.
pub(crate) fn size(stdin: &Stdin) -> TerminalSize {
    let mut window = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one winsize, which outlives the call.
    match unsafe { window_size(stdin.as_raw_fd(), &mut window) } {
        Ok(_) if window.ws_row > 0 && window.ws_col > 0 => {
            TerminalSize { rows: window.ws_row, columns: window.ws_col }
        }
        _ => TerminalSize { rows: 24, columns: 80 },
    }
}

/// Raw mode. Drop restores the previous mode.
pub(crate) struct Raw {
    before: Option<Termios>,
}

impl Raw {
    pub(crate) fn enter(stdin: &Stdin) -> Result<Self> {
        if !stdin.is_terminal() {
            return Ok(Self { before: None });
        }
        let before = tcgetattr(stdin).context("reading the terminal's settings")?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(stdin, SetArg::TCSANOW, &raw).context("setting the terminal up")?;
        Ok(Self { before: Some(before) })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // A failure can't be reported in drop.
            let _ = tcsetattr(std::io::stdin(), SetArg::TCSANOW, before);
        }
    }
}
