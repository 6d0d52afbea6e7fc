//! Parses C headers from the preprocessor's output: structs with their members, and named values.
//!
//! Only names and types are parsed. Sizes, offsets and values come from the C compiler
//! ([`crate::compiler`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result, bail};

/// All declarations in one kernel's headers.
#[derive(Debug, Default)]
pub struct Headers {
    /// Structs and unions by their C type (`struct x`, `union y`).
    pub structs: BTreeMap<String, Struct>,
    /// Enumerators, and macros without parameters that have a value.
    pub values: BTreeMap<String, Value>,
    /// Macros with parameters, with the file that defines them.
    pub functions: BTreeMap<String, String>,
    /// Definitions of kernel-only headers that compile on their own, in header order.
    pub kernel_only: Vec<Definition>,
}

/// A definition of a kernel-only header.
#[derive(Debug)]
pub struct Definition {
    /// The names of the enumerators, of the macro or of the struct tag.
    pub names: Vec<String>,
    /// C that defines them.
    pub text: String,
}

/// A struct or union.
#[derive(Debug)]
pub struct Struct {
    /// The header that defines it, as in the `#include`.
    pub file: String,
    /// Its members.
    pub members: Vec<Member>,
}

/// A member of a struct or union.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its name; empty for an anonymous struct or union.
    pub name: String,
    /// The type, without array bounds.
    pub ty: Type,
    /// The array bounds after the name.
    pub array: Array,
}

/// Whether a member is an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Array {
    /// Not an array.
    No,
    /// It has a length.
    Fixed,
    /// A flexible array member, which has no size.
    Flexible,
}

/// The type of a member.
#[derive(Clone, Debug)]
pub enum Type {
    /// A basic or typedef'd type; pointers end in `*`.
    Scalar(String),
    /// A struct or union by its tag.
    Tagged(String),
    /// A struct or union defined in place.
    Inline(Arc<[Member]>),
}

/// A named value.
#[derive(Debug)]
pub struct Value {
    /// The header that defines it.
    pub file: String,
    /// The tag of its enumeration; empty for an enumeration without one and for a macro.
    pub tag: String,
    /// The index of its enumeration; `None` for a macro.
    pub group: Option<usize>,
}

/// A member that holds bytes of its own: not a struct or union defined in place.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Its designator.
    pub path: String,
    /// The member.
    pub member: Member,
}

impl Headers {
    /// Parses the output of `cc -E -dD`. `includes` are the include folders, which are cut off file
    /// names.
    pub fn parse(preprocessed: &str, includes: &[&str]) -> Result<Headers> {
        let mut headers = Headers::default();
        let tokens = headers.tokens(preprocessed, includes);
        Parser { tokens: &tokens, at: 0, headers: &mut headers, groups: 0 }.declarations()?;
        Ok(headers)
    }

    /// Adds the enumerations, plain macros and simple structs of a kernel-only header, given as its
    /// source text without comments.
    pub fn add_kernel_only(&mut self, file: &str, text: &str) -> Result<()> {
        let text = format!("# 1 \"{file}\"\n{}", text.replace("\\\n", " "));
        let mut own = Headers::default();
        let tokens = own.tokens(&text, &[]);
        for line in text.lines() {
            let mut words = line.strip_prefix("#define ").unwrap_or_default().splitn(2, ' ');
            if let (Some(name), Some(body)) =
                (words.next().filter(|name| own.values.contains_key(*name)), words.next())
            {
                let text = format!("enum {{ {name} = {body} }}");
                self.kernel_only.push(Definition { names: vec![name.into()], text });
            }
        }
        let groups = self.values.values().filter_map(|value| value.group).max().unwrap_or(0);
        let mut parser = Parser { tokens: &tokens, at: 0, headers: &mut own, groups };
        while parser.at < tokens.len() {
            let start = parser.at;
            let names = parser.definition()?;
            if !names.is_empty() {
                let text: Vec<&str> = tokens[start..parser.at].iter().map(|token| token.text).collect();
                self.kernel_only.push(Definition { names, text: text.join(" ") });
            }
        }
        for (name, value) in own.values {
            self.values.entry(name).or_insert(value);
        }
        for (name, ty) in own.structs {
            self.structs.entry(name).or_insert(ty);
        }
        Ok(())
    }
    /// The texts of the kernel-only definitions of these names, and of the names that they refer
    /// to, in order.
    pub fn kernel_only_texts<'a>(&'a self, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
        let mut defined: BTreeMap<&str, usize> = BTreeMap::new();
        for (index, definition) in self.kernel_only.iter().enumerate() {
            defined.extend(definition.names.iter().map(|name| (name.as_str(), index)));
        }
        let mut wanted = BTreeSet::new();
        let mut open: Vec<&str> = names.into_iter().collect();
        while let Some(name) = open.pop() {
            if let Some(&index) = defined.get(name)
                && wanted.insert(index)
            {
                open.extend(self.kernel_only[index].text.split(' '));
            }
        }
        wanted.into_iter().map(|index| self.kernel_only[index].text.as_str()).collect()
    }

    /// Collects the macros and returns all other text as tokens.
    fn tokens<'a>(&mut self, text: &'a str, includes: &[&str]) -> Vec<Token<'a>> {
        let mut file: Arc<str> = "".into();
        let mut tokens = Vec::new();
        for line in text.lines() {
            let Some(directive) = line.strip_prefix('#') else {
                words(line, |text| tokens.push(Token { text, file: file.clone() }));
                continue;
            };
            if let Some(quoted) = directive.strip_prefix(' ') {
                let path = quoted.split('"').nth(1).unwrap_or_default();
                file = includes
                    .iter()
                    .filter_map(|folder| path.strip_prefix(folder)?.strip_prefix('/'))
                    .min_by_key(|path| path.len())
                    .unwrap_or(path)
                    .into();
            } else if let Some(definition) = directive.strip_prefix("define ") {
                let end = definition.find([' ', '(']).unwrap_or(definition.len());
                let (name, body) = definition.split_at(end);
                if body.starts_with('(') {
                    self.functions.insert(name.into(), file.to_string());
                } else if !body.trim().is_empty() {
                    self.values.entry(name.into()).or_insert_with(|| Value {
                        file: file.to_string(),
                        tag: String::new(),
                        group: None,
                    });
                }
            }
        }
        tokens
    }

    /// The member that a designator names, if it exists.
    pub fn resolve(&self, ty: &str, path: &str) -> Option<Member> {
        let mut members: &[Member] = &self.structs.get(ty)?.members;
        let mut names = path.split('.').map(|name| name.split('[').next().unwrap_or(name)).peekable();
        loop {
            let member = find(members, names.next()?)?;
            if names.peek().is_none() {
                return Some(member.clone());
            }
            members = match &member.ty {
                Type::Inline(members) => members,
                Type::Tagged(ty) => &self.structs.get(ty)?.members,
                Type::Scalar(_) => return None,
            };
        }
    }

    /// The members that hold bytes. Members of a tagged type are expanded if `enter` returns true
    /// for it.
    pub fn leaves(&self, members: &[Member], enter: &dyn Fn(&str) -> bool) -> Vec<Leaf> {
        let mut leaves = Vec::new();
        self.collect(members, "", enter, &mut leaves);
        leaves
    }

    fn collect(
        &self,
        members: &[Member],
        prefix: &str,
        enter: &dyn Fn(&str) -> bool,
        leaves: &mut Vec<Leaf>,
    ) {
        for member in members {
            let path = match (prefix, member.name.as_str()) {
                (prefix, "") => prefix.to_string(),
                ("", name) => name.to_string(),
                (prefix, name) => format!("{prefix}.{name}"),
            };
            match &member.ty {
                Type::Inline(members) if member.array == Array::No => {
                    self.collect(members, &path, enter, leaves)
                }
                Type::Tagged(ty)
                    if member.array == Array::No && enter(&path) && self.structs.contains_key(ty) =>
                {
                    self.collect(&self.structs[ty].members, &path, enter, leaves);
                }
                _ => leaves.push(Leaf { path, member: member.clone() }),
            }
        }
    }
}

fn find<'a>(members: &'a [Member], name: &str) -> Option<&'a Member> {
    members.iter().find_map(|member| match &member.ty {
        _ if member.name == name => Some(member),
        Type::Inline(members) if member.name.is_empty() => find(members, name),
        _ => None,
    })
}

#[derive(Clone)]
struct Token<'a> {
    text: &'a str,
    file: Arc<str>,
}

/// Splits a line into identifiers, numbers, quoted strings and single characters.
fn words<'a>(line: &'a str, mut take: impl FnMut(&'a str)) {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut rest = line.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if word(first) {
            rest.find(|c| !word(c)).unwrap_or(rest.len())
        } else if first == '"' {
            rest[1..].find('"').map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("<<") || rest.starts_with(">>") {
            2
        } else {
            first.len_utf8()
        };
        take(&rest[..length]);
        rest = rest[length..].trim_start();
    }
}

struct Parser<'a, 'b> {
    tokens: &'b [Token<'a>],
    at: usize,
    headers: &'b mut Headers,
    groups: usize,
}

impl<'a> Parser<'a, '_> {
    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).map_or("", |token| token.text)
    }

    fn next(&mut self) -> &'a str {
        let text = self.peek();
        self.at += 1;
        text
    }

    fn file(&self) -> String {
        self.tokens.get(self.at).map_or_else(String::new, |token| token.file.to_string())
    }

    fn fail<T>(&self, wanted: &str) -> Result<T> {
        bail!("{}: expected {wanted}, found `{}`", self.file(), self.peek())
    }

    fn expect(&mut self, mark: &str) -> Result<()> {
        if self.peek() != mark {
            return self.fail(&format!("`{mark}`"));
        }
        self.at += 1;
        Ok(())
    }

    /// Skips a bracketed group of any kind. The opening bracket is the next token.
    fn skip_group(&mut self) -> Result<()> {
        let mut depth = 0;
        loop {
            match self.next() {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                "" => bail!("a bracket is not closed"),
                _ => {}
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    fn skip_attributes(&mut self) -> Result<()> {
        while matches!(self.peek(), "__attribute__" | "__extension__" | "const" | "volatile") {
            if self.next() == "__attribute__" {
                self.skip_group()?;
            }
        }
        Ok(())
    }

    fn declarations(&mut self) -> Result<()> {
        while self.at < self.tokens.len() {
            match self.peek() {
                "struct" | "union" => drop(self.aggregate()?),
                "enum" => self.enumeration()?,
                "{" | "(" => self.skip_group()?,
                _ => self.at += 1,
            }
        }
        Ok(())
    }

    /// Parses the next definition. Returns the names it defines if it is an enumeration or a simple
    /// struct.
    fn definition(&mut self) -> Result<Vec<String>> {
        let start = self.at;
        match self.peek() {
            "enum" => {
                let before = self.groups;
                self.enumeration()?;
                let new = self.headers.values.iter().filter(|(_, value)| value.group > Some(before));
                Ok(new.map(|(name, _)| name.clone()).collect())
            }
            "struct" if self.tokens.get(start + 2).is_some_and(|token| token.text == "{") => {
                match self.aggregate() {
                    Ok(_) => Ok(vec![self.tokens[start + 1].text.into()]),
                    Err(_) => {
                        self.at = start + 2;
                        self.skip_group()?;
                        Ok(Vec::new())
                    }
                }
            }
            _ => {
                self.at += 1;
                Ok(Vec::new())
            }
        }
    }

    /// A struct or union, defined here or referred to by tag.
    fn aggregate(&mut self) -> Result<Type> {
        let keyword = self.next();
        self.skip_attributes()?;
        let file = self.file();
        let tag = if self.peek() == "{" { None } else { Some(format!("{keyword} {}", self.next())) };
        if self.peek() != "{" {
            return tag.map(Type::Tagged).context("a struct with neither a tag nor members");
        }
        let members =
            self.members().with_context(|| format!("{file}: {}", tag.as_deref().unwrap_or(keyword)))?;
        self.skip_attributes()?;
        Ok(match tag {
            Some(tag) => {
                self.headers.structs.insert(tag.clone(), Struct { file, members });
                Type::Tagged(tag)
            }
            None => Type::Inline(members.into()),
        })
    }

    fn members(&mut self) -> Result<Vec<Member>> {
        let mut members = Vec::new();
        self.expect("{")?;
        while self.peek() != "}" {
            self.skip_attributes()?;
            let ty = self.member_type()?;
            if self.peek() == ";" {
                members.push(Member { name: String::new(), ty: ty.clone(), array: Array::No });
            }
            while self.peek() != ";" {
                members.push(self.declarator(&ty)?);
                self.skip_attributes()?;
                if self.peek() != ";" {
                    self.expect(",")?;
                }
            }
            self.expect(";")?;
        }
        self.expect("}")?;
        Ok(members)
    }

    /// A member's type. For a basic type, the last word before punctuation is the member's name.
    fn member_type(&mut self) -> Result<Type> {
        match self.peek() {
            "struct" | "union" => return self.aggregate(),
            "enum" => {
                self.enumeration()?;
                return Ok(Type::Scalar("unsigned int".into()));
            }
            _ => {}
        }
        let mut words = Vec::new();
        loop {
            self.skip_attributes()?;
            let next = self.tokens.get(self.at + 1).map_or("", |token| token.text);
            if !words.is_empty() && matches!(next, ";" | "," | "[" | ":" | "__attribute__")
                || matches!(self.peek(), "*" | "(")
            {
                break;
            }
            match self.next() {
                "" => return self.fail("a member"),
                word => words.push(word),
            }
        }
        Ok(Type::Scalar(words.join(" ")))
    }

    fn declarator(&mut self, ty: &Type) -> Result<Member> {
        let mut ty = ty.clone();
        self.skip_attributes()?;
        while self.peek() == "*" {
            self.at += 1;
            ty = Type::Scalar("*".into());
        }
        if self.peek() == "(" {
            // A pointer to a function.
            self.skip_group()?;
            self.skip_group()?;
            return Ok(Member { name: "()".into(), ty: Type::Scalar("*".into()), array: Array::No });
        }
        let name = self.next().to_string();
        let mut array = Array::No;
        while self.peek() == "[" {
            let empty = self.tokens.get(self.at + 1).is_some_and(|token| token.text == "]");
            array = if empty { Array::Flexible } else { Array::Fixed };
            self.skip_group()?;
        }
        if self.peek() == ":" {
            return self.fail("a member that is not a bit field");
        }
        Ok(Member { name, ty, array })
    }

    fn enumeration(&mut self) -> Result<()> {
        self.expect("enum")?;
        self.skip_attributes()?;
        let tag = if self.peek() == "{" { String::new() } else { self.next().to_string() };
        if self.peek() != "{" {
            return Ok(());
        }
        self.at += 1;
        self.groups += 1;
        while self.peek() != "}" {
            let file = self.file();
            let name = self.next();
            let value = Value { file, tag: tag.clone(), group: Some(self.groups) };
            self.headers.values.insert(name.to_string(), value);
            while !matches!(self.peek(), "," | "}") {
                match self.peek() {
                    "(" => self.skip_group()?,
                    "" => return self.fail("an enumerator"),
                    _ => self.at += 1,
                }
            }
            if self.peek() == "," {
                self.at += 1;
            }
        }
        self.at += 1;
        self.skip_attributes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# 1 \"<command-line>\"
#define __x86_64__ 1
# 1 \"/include/rdma/a.h\" 1
#define GUARD
#define A_FOUR (1 << 2)
#define A_OF(x) ((x) + 1)
typedef __signed__ int __s32;
static inline int f(struct b *b) { if (b) { return 1; } return 0; }
enum a_kind {
 A_FIRST = (1U << 12),
 A_SECOND,
};
enum { B_ONLY };
struct a {
 __u64 __attribute__((aligned(8))) one, two[2];
 struct b inner;
 union { struct { __u8 elem; unsigned int rest; } parts; __u32 whole; } of;
 union { __u64 data; __s64 data_s64; };
 struct { struct { } __empty_end; __u8 end[]; };
};
struct b { __u16 x; } __attribute__((packed));
";

    fn headers() -> Headers {
        Headers::parse(TEXT, &["/include"]).expect("plain C")
    }

    fn paths(enter: &dyn Fn(&str) -> bool) -> Vec<String> {
        let headers = headers();
        headers
            .leaves(&headers.structs["struct a"].members, enter)
            .into_iter()
            .map(|leaf| leaf.path)
            .collect()
    }

    #[test]
    fn macros_and_enumerators_are_values_of_their_header() {
        let headers = headers();
        let names: Vec<_> = headers.values.keys().collect();
        assert_eq!(names, ["A_FIRST", "A_FOUR", "A_SECOND", "B_ONLY", "__x86_64__"]);
        assert_eq!(headers.values["A_FOUR"].file, "rdma/a.h");
        assert_eq!(headers.values["A_SECOND"].tag, "a_kind");
        assert_eq!(headers.values["A_FIRST"].group, headers.values["A_SECOND"].group);
        assert_ne!(headers.values["A_FIRST"].group, headers.values["B_ONLY"].group);
        assert_eq!(headers.functions.keys().collect::<Vec<_>>(), ["A_OF"]);
    }

    #[test]
    fn inline_struct_members_use_designators() {
        let expected =
            ["one", "two", "inner", "of.parts.elem", "of.parts.rest", "of.whole", "data", "data_s64", "end"];
        assert_eq!(paths(&|_| false), expected);
    }

    #[test]
    fn tagged_members_are_entered_on_request() {
        assert_eq!(paths(&|path| path == "inner")[2], "inner.x");
    }

    #[test]
    fn designators_resolve_through_nested_types() {
        let headers = headers();
        assert!(headers.resolve("struct a", "inner.x").is_some());
        assert!(headers.resolve("struct a", "of.parts").is_some());
        assert!(headers.resolve("struct a", "data_s64").is_some());
        assert!(headers.resolve("struct a", "inner.y").is_none());
        assert_eq!(headers.resolve("struct a", "end").map(|member| member.array), Some(Array::Flexible));
        assert_eq!(headers.resolve("struct a", "two").map(|member| member.array), Some(Array::Fixed));
    }

    #[test]
    fn kernel_only_definitions_include_dependencies() {
        let mut headers = headers();
        let text = "#define C_ONE 1\n#define M(x) do { \\\n x; } while (0)\n\
                    enum c { C_A, C_B = C_ONE };\nstruct odd { int x:4; };\nstruct s { __u32 x; };\n\
                    struct t { struct s s; };\nenum d { D_A = C_B << 1 };\nenum e { E_A };";
        headers.add_kernel_only("include/c.h", text).expect("plain C");
        let value = &headers.values["D_A"];
        assert_eq!((value.tag.as_str(), value.file.as_str()), ("d", "include/c.h"));
        let expected = ["enum { C_ONE = 1 }", "enum c { C_A , C_B = C_ONE }", "enum d { D_A = C_B << 1 }"];
        assert_eq!(headers.kernel_only_texts(["D_A"]), expected);
        let expected = ["struct s { __u32 x ; }", "struct t { struct s s ; }"];
        assert_eq!(headers.kernel_only_texts(["t"]), expected);
        assert!(!headers.structs.contains_key("struct odd"));
    }

    #[test]
    fn bit_fields_are_rejected() {
        assert!(Headers::parse("struct a { __u8 x:4, y:4; };", &[]).is_err());
    }
}
