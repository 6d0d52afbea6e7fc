//! The functions and function-like macros that C headers define.

use std::collections::BTreeSet;

/// What a header defines and names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    /// `static` functions.
    pub(super) inline: BTreeSet<String>,
    /// Macros with parameters.
    pub(super) macros: BTreeSet<String>,
    /// All identifiers outside of comments.
    pub(super) names: BTreeSet<String>,
}

impl Header {
    pub(super) fn parse(text: &str) -> Self {
        let text = without_comments(&text.replace("\\\n", " "));
        let mut header = Self::default();
        header.names.extend(identifiers(&text).map(str::to_owned));
        let (directives, code): (Vec<_>, Vec<_>) =
            text.lines().partition(|line| line.trim_start().starts_with('#'));
        header.macros.extend(directives.iter().filter_map(|line| macro_name(line)).map(str::to_owned));
        header.inline.extend(inline_functions(&code.join("\n")));
        header
    }
}

/// The text with a space for each comment.
fn without_comments(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        code.push_str(&rest[..at]);
        let comment = &rest[at..];
        let end = match comment.as_bytes().get(1) {
            Some(b'*') => comment.find("*/").map_or(comment.len(), |end| end + 2),
            Some(b'/') => comment.find('\n').unwrap_or(comment.len()),
            _ => {
                code.push('/');
                rest = &comment[1..];
                continue;
            }
        };
        code.push(' ');
        rest = &comment[end..];
    }
    code + rest
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character| !is_word(character))
        .filter(|word| !word.is_empty() && !word.starts_with(|first: char| first.is_ascii_digit()))
}

/// `NAME` of `#define NAME(…`
fn macro_name(line: &str) -> Option<&str> {
    let define = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("define")?.trim_start();
    let (name, _) = define.split_once('(')?;
    name.chars().all(is_word).then_some(name)
}

/// The names before the parameters of `static` functions, which are inline in headers.
fn inline_functions(code: &str) -> Vec<String> {
    // What precedes each opening brace, back to the end of the previous declaration.
    let blocks = code.split('{').filter_map(|block| block.rsplit(['}', ';']).next());
    let heads =
        blocks.filter_map(|head| head.trim().strip_prefix("static ")).filter(|head| !head.contains('='));
    heads.filter_map(function_name).map(str::to_owned).collect()
}

/// The last word before the first parenthesis that is not an attribute's.
fn function_name(head: &str) -> Option<&str> {
    let mut rest = head;
    loop {
        let (before, after) = rest.split_once('(')?;
        let name = identifiers(before).last()?;
        if name != "__attribute__" {
            return Some(name);
        }
        rest = after.split_once("))")?.1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_and_macros_of_a_header_are_found() {
        let header = Header::parse(
            "/* static inline int in_comment(void); */\n#define PLAIN (1)\n#define CALL(x) \\\n f(x) // CALL2()\n\
             # define OTHER( y) y\nextern \"C\" {\nstatic inline struct ibv_cq *cq_of(struct cq *cq)\n{\n\
             \treturn (struct ibv_cq *)cq;\n}\nstatic inline int\n__attribute__((unused)) long_one(int a,\n int b) {}\n\
             int exported(int a);\n#ifdef X\nstatic ALWAYS_INLINE void *last(void) { }\n#endif\n\
             static const struct x table[F(1)] = { 1 };\n}",
        );
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(header.macros, set(&["CALL", "OTHER"]));
        assert_eq!(header.inline, set(&["cq_of", "long_one", "last"]));
        assert!(header.names.contains("exported") && header.names.contains("ibv_cq"));
        assert!(!header.names.contains("in_comment") && !header.names.contains("CALL2"));
    }
}
