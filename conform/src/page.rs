//! Pages of results: one file of HTML for light and dark screens of any width, without scripts or
//! fonts. The reports of this crate and of `bareverbs perf` are such pages.

/// The style that all pages have. `.n` are numbers, `.m` is text of less weight, `.wide` may be wider
/// than the screen.
const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--soft:#8881;--muted:#59636e}
@media(prefers-color-scheme:dark){:root{--muted:#9198a1}}
*{box-sizing:border-box}
body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:72rem}
h1{font-size:1.4rem;margin:0 0 .25rem}
h2{font-size:1.1rem;margin:1.5rem 0 .5rem}
h3{font-size:1rem;margin:0 0 .25rem}
p{margin:.25rem 0}
a{color:inherit;text-underline-offset:2px}
table{border-collapse:collapse;width:100%}
th,td{padding:.25rem .5rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.m{color:var(--muted);font-size:13px}
.wide{overflow-x:auto}
@media(max-width:40rem){body{padding:.6rem}th,td{padding:.25rem .3rem}table{font-size:13px}}
";

/// A page. `style` has the rules of the classes that only this page uses.
#[must_use]
pub fn page(title: &str, style: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}{style}</style>\n</head>\n<body>\n<h1>{title}</h1>\n\
         {body}</body>\n</html>\n"
    )
}

/// Text of HTML or XML, also of attributes. Control characters but line breaks and tabs are blanks.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            char if char.is_control() && !"\n\t".contains(char) => escaped.push(' '),
            char => escaped.push(char),
        }
    }
    escaped
}
