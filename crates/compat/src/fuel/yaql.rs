//! The expressions in Fuel's tasks: YAQL, and the small language of the first generation, read
//! into one tree. Nothing is evaluated here.

/// Brackets and operators inside of each other.
const MAX_NESTING: usize = 100;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expr {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    /// `$`: the data of the node, or the current item.
    Root,
    /// `$node`, or a word of its own.
    Name(String),
    Field(Box<Expr>, String),
    Call {
        of: Option<Box<Expr>>,
        name: String,
        arguments: Vec<Expr>,
    },
    List(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
    /// `a => b` as an argument.
    Pair(Box<Expr>, Box<Expr>),
    Not(Box<Expr>),
    Binary(Operator, Box<Expr>, Box<Expr>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Or,
    And,
    Equal,
    Unequal,
    Less,
    Greater,
    AtMost,
    AtLeast,
    In,
    Plus,
    Minus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Yaql,
    /// `settings:storage.images_ceph.value == true`.
    Old,
}

#[derive(Debug, Clone, PartialEq)]
enum Lexeme {
    Word(String),
    Variable(String),
    Number(String),
    Text(String),
    Mark(&'static str),
}

/// The first error of an expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum SyntaxError {
    #[error("a second expression follows: {0}")]
    SecondExpression(String),
    #[error("`{0}` is not understood")]
    UnknownCharacter(char),
    #[error("a text does not end")]
    OpenText,
    #[error("`{0}` is missing")]
    Missing(&'static str),
    #[error("the expression is nested deeper than {MAX_NESTING} times")]
    TooDeep,
    #[error("a name is missing after a full stop")]
    MissingName,
    #[error("the expression ends too early")]
    Truncated,
    #[error("a map has something that is no pair")]
    NotAPair,
    #[error("`{0}` stands where it cannot")]
    Misplaced(&'static str),
}

/// Longer ones first.
const MARKS: [&str; 18] =
    ["=>", "==", "!=", "<=", ">=", "(", ")", "[", "]", "{", "}", ",", ".", "=", "<", ">", "+", "-"];

pub(super) fn parse(text: &str, dialect: Dialect) -> Result<Expr, SyntaxError> {
    let tokens = tokens(text, dialect)?;
    let mut parser = Parser { tokens: &tokens, at: 0, depth: 0 };
    let expr = parser.pair()?;
    match parser.tokens.get(parser.at) {
        None => Ok(expr),
        Some(token) => Err(SyntaxError::SecondExpression(format!("{token:?}"))),
    }
}

fn tokens(text: &str, dialect: Dialect) -> Result<Vec<Lexeme>, SyntaxError> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let token;
        (token, rest) = if matches!(first, '\'' | '"') {
            quoted(rest, first)?
        } else if let Some(after) = rest.strip_prefix('$') {
            let (word, after) = run(after, is_word);
            (Lexeme::Variable(word.to_owned()), after)
        } else if first.is_ascii_digit() {
            let (number, after) = run(rest, |c| c.is_ascii_digit() || c == '.');
            (Lexeme::Number(number.to_owned()), after)
        } else if is_word(first) {
            let in_word = |c| is_word(c) || dialect == Dialect::Old && matches!(c, ':' | '.' | '-');
            let (word, after) = run(rest, in_word);
            (Lexeme::Word(word.to_owned()), after)
        } else if let Some(mark) = MARKS.iter().find(|mark| rest.starts_with(**mark)) {
            (Lexeme::Mark(mark), &rest[mark.len()..])
        } else {
            return Err(SyntaxError::UnknownCharacter(first));
        };
        tokens.push(token);
        rest = rest.trim_start();
    }
    Ok(tokens)
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn run(text: &str, is_part: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !is_part(c)).unwrap_or(text.len()))
}

fn quoted(text: &str, quote: char) -> Result<(Lexeme, &str), SyntaxError> {
    let mut inner = String::new();
    let mut characters = text.char_indices().skip(1);
    while let Some((at, c)) = characters.next() {
        match c {
            c if c == quote => return Ok((Lexeme::Text(inner), &text[at + c.len_utf8()..])),
            '\\' => match characters.next() {
                Some((_, next)) if next == quote || next == '\\' => inner.push(next),
                Some((_, next)) => inner.extend(['\\', next]),
                None => break,
            },
            c => inner.push(c),
        }
    }
    Err(SyntaxError::OpenText)
}

struct Parser<'a> {
    tokens: &'a [Lexeme],
    at: usize,
    depth: usize,
}

type ParseResult = Result<Expr, SyntaxError>;

impl Parser<'_> {
    fn eat(&mut self, mark: &str) -> bool {
        let found = matches!(self.tokens.get(self.at), Some(Lexeme::Mark(m)) if *m == mark);
        self.at += usize::from(found);
        found
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let found = matches!(self.tokens.get(self.at), Some(Lexeme::Word(w)) if w == word);
        self.at += usize::from(found);
        found
    }

    fn need(&mut self, mark: &'static str) -> Result<(), SyntaxError> {
        if self.eat(mark) { Ok(()) } else { Err(SyntaxError::Missing(mark)) }
    }

    fn pair(&mut self) -> ParseResult {
        self.depth += 1;
        if self.depth > MAX_NESTING {
            return Err(SyntaxError::TooDeep);
        }
        let left = self.or()?;
        let pair =
            if self.eat("=>") { Expr::Pair(Box::new(left), Box::new(self.or()?)) } else { left };
        self.depth -= 1;
        Ok(pair)
    }

    fn or(&mut self) -> ParseResult {
        let mut left = self.and()?;
        while self.eat_word("or") {
            left = binary(Operator::Or, left, self.and()?);
        }
        Ok(left)
    }

    fn and(&mut self) -> ParseResult {
        let mut left = self.not()?;
        while self.eat_word("and") {
            left = binary(Operator::And, left, self.not()?);
        }
        Ok(left)
    }

    fn not(&mut self) -> ParseResult {
        let mut count = 0;
        while self.eat_word("not") {
            count += 1;
        }
        let mut expr = self.comparison()?;
        if count % 2 == 1 {
            expr = Expr::Not(Box::new(expr));
        }
        Ok(expr)
    }

    fn comparison(&mut self) -> ParseResult {
        const OPERATORS: [(&str, Operator); 7] = [
            ("==", Operator::Equal),
            ("=", Operator::Equal),
            ("!=", Operator::Unequal),
            ("<=", Operator::AtMost),
            (">=", Operator::AtLeast),
            ("<", Operator::Less),
            (">", Operator::Greater),
        ];
        let left = self.sum()?;
        for (mark, operator) in OPERATORS {
            if self.eat(mark) {
                return Ok(binary(operator, left, self.sum()?));
            }
        }
        if self.eat_word("in") {
            return Ok(binary(Operator::In, left, self.sum()?));
        }
        Ok(left)
    }

    fn sum(&mut self) -> ParseResult {
        let mut left = self.postfix()?;
        loop {
            let operator = if self.eat("+") {
                Operator::Plus
            } else if self.eat("-") {
                Operator::Minus
            } else {
                return Ok(left);
            };
            left = binary(operator, left, self.postfix()?);
        }
    }

    fn postfix(&mut self) -> ParseResult {
        let mut expr = self.primary()?;
        while self.eat(".") {
            let Some(Lexeme::Word(name)) = self.tokens.get(self.at).cloned() else {
                return Err(SyntaxError::MissingName);
            };
            self.at += 1;
            expr = if self.eat("(") {
                let arguments = self.items(")")?;
                Expr::Call { of: Some(Box::new(expr)), name, arguments }
            } else {
                Expr::Field(Box::new(expr), name)
            };
        }
        Ok(expr)
    }

    fn primary(&mut self) -> ParseResult {
        let token = self.tokens.get(self.at).cloned().ok_or(SyntaxError::Truncated)?;
        self.at += 1;
        Ok(match token {
            Lexeme::Text(text) => Expr::Text(text),
            Lexeme::Number(number) => Expr::Number(number),
            Lexeme::Variable(name) if name.is_empty() => Expr::Root,
            Lexeme::Variable(name) => Expr::Name(name),
            Lexeme::Word(word) => match word.as_str() {
                "true" => Expr::Bool(true),
                "false" => Expr::Bool(false),
                "null" => Expr::Null,
                _ if self.eat("(") => {
                    Expr::Call { of: None, name: word, arguments: self.items(")")? }
                }
                _ => old_path(&word),
            },
            Lexeme::Mark("(") => {
                let inner = self.pair()?;
                self.need(")")?;
                inner
            }
            Lexeme::Mark("[") => Expr::List(self.items("]")?),
            Lexeme::Mark("{") => {
                let pairs = self.items("}")?.into_iter().map(|item| match item {
                    Expr::Pair(key, value) => Ok((*key, *value)),
                    _ => Err(SyntaxError::NotAPair),
                });
                Expr::Map(pairs.collect::<Result<_, _>>()?)
            }
            Lexeme::Mark(mark) => return Err(SyntaxError::Misplaced(mark)),
        })
    }

    fn items(&mut self, end: &str) -> Result<Vec<Expr>, SyntaxError> {
        let mut items = Vec::new();
        while !self.eat(end) {
            if !items.is_empty() {
                self.need(",")?;
            }
            items.push(self.pair()?);
        }
        Ok(items)
    }
}

fn binary(operator: Operator, left: Expr, right: Expr) -> Expr {
    Expr::Binary(operator, Box::new(left), Box::new(right))
}

/// `settings:a.b` is the field `a.b` of the settings.
fn old_path(word: &str) -> Expr {
    let Some((model, path)) = word.split_once(':') else { return Expr::Name(word.to_owned()) };
    let root = match model {
        "settings" => Expr::Root,
        other => Expr::Field(Box::new(Expr::Root), other.to_owned()),
    };
    path.split('.').fold(root, |expr, name| Expr::Field(Box::new(expr), name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yaql(text: &str) -> Expr {
        parse(text, Dialect::Yaql).expect(text)
    }

    #[test]
    fn operators_bind_as_in_yaql() {
        assert_eq!(yaql("not $.a = 1 or $.b and $.c"), yaql("((not ($.a = 1)) or ($.b and $.c))"));
        assert_eq!(yaql("'a' + $ in $.roles"), yaql("('a' + $) in ($.roles)"));
    }

    #[test]
    fn text_may_hold_its_own_quote() {
        assert_eq!(yaql(r"'it\'s'"), Expr::Text("it's".to_owned()));
        assert_eq!(yaql(r"'\d'"), Expr::Text(r"\d".to_owned()));
    }

    #[test]
    fn invalid_expressions_are_refused() {
        for text in ["", "$.", "(", "'open", "a b", "{1}", "[1 2]", "$.a ? 1", ")"] {
            assert!(parse(text, Dialect::Yaql).is_err(), "{text}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |depth: usize| format!("{}1{}", "(".repeat(depth), ")".repeat(depth));
        assert!(parse(&nested(MAX_NESTING - 1), Dialect::Yaql).is_ok());
        assert!(parse(&nested(MAX_NESTING), Dialect::Yaql).is_err());
    }

    #[test]
    fn old_dialect_names_its_models() {
        let old = parse("settings:a-b.value == true", Dialect::Old).expect("it is one");
        let field = |of: Expr, name: &str| Expr::Field(Box::new(of), name.to_owned());
        let left = field(field(Expr::Root, "a-b"), "value");
        assert_eq!(old, binary(Operator::Equal, left, Expr::Bool(true)));
    }
}
