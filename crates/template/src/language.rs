//! The allowed subset of the template language: reading, choosing and repeating, but nothing that
//! makes large values from small ones. One letter doubled forty times would fill the memory, and
//! minijinja does not count such work.

use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, Spanned, Stmt};
use minijinja::machinery::{Token, Tokenizer, parse, parse_expr};
use minijinja::syntax::SyntaxConfig;

use super::{TemplateError, told};

/// None of them gives more than it takes.
const FILTERS: [&str; 10] =
    ["default", "d", "lower", "upper", "trim", "length", "first", "last", "int", "items"];

/// Tokens in one pair of braces. A chain (`a-b-c`, `a.b.c`, `a|b|c`) nests as deep as it is long,
/// and every reader, here and in minijinja, recurses once per level.
const MAX_CHAIN: usize = 200;

/// Branches that nest in each other, likewise.
const MAX_ELIFS: usize = 100;

pub(crate) fn check(source: &str, syntax: SyntaxConfig) -> Result<(), TemplateError> {
    chains(source, syntax.clone())?;
    let template = parse(source, "template", syntax).map_err(|error| told(&error))?;
    statement(&template)
}

/// As [`check`], for a single expression without braces.
pub(crate) fn check_expression(source: &str, syntax: SyntaxConfig) -> Result<(), TemplateError> {
    let mut tokenizer = Tokenizer::new(source, "expression", true, syntax);
    let mut chain = 0;
    while tokenizer.next_token().map_err(|error| told(&error))?.is_some() {
        chain += 1;
        if chain > MAX_CHAIN {
            let message = format!("an expression has more than {MAX_CHAIN} tokens");
            return Err(TemplateError::new(message));
        }
    }
    expression(&parse_expr(source).map_err(|error| told(&error))?)
}

/// Refuses deep nesting before anything recurses into it.
fn chains(source: &str, syntax: SyntaxConfig) -> Result<(), TemplateError> {
    let mut tokenizer = Tokenizer::new(source, "template", false, syntax);
    let mut chain = 0;
    let mut elifs = 0;
    while let Some((token, span)) = tokenizer.next_token().map_err(|error| told(&error))? {
        match token {
            Token::VariableStart | Token::BlockStart => chain = 0,
            Token::Ident("elif") => elifs += 1,
            _ => chain += 1,
        }
        if chain > MAX_CHAIN || elifs > MAX_ELIFS {
            return Err(TemplateError::new(format!(
                "line {}: an expression has more than {MAX_CHAIN} tokens in one expression, or \
                 {MAX_ELIFS} times `elif`; write several expressions",
                span.start_line
            )));
        }
    }
    Ok(())
}

fn statements(all: &[Stmt<'_>]) -> Result<(), TemplateError> {
    all.iter().try_for_each(statement)
}

fn statement(one: &Stmt<'_>) -> Result<(), TemplateError> {
    match one {
        Stmt::Template(template) => statements(&template.children),
        Stmt::EmitRaw(_) => Ok(()),
        Stmt::EmitExpr(emit) => expression(&emit.expr),
        Stmt::IfCond(branch) => {
            expression(&branch.expr)?;
            statements(&branch.true_body)?;
            statements(&branch.false_body)
        }
        Stmt::ForLoop(each) if !each.recursive => {
            expression(&each.iter)?;
            each.filter_expr.iter().try_for_each(expression)?;
            statements(&each.body)?;
            statements(&each.else_body)
        }
        Stmt::ForLoop(each) => refuse(each, "`recursive`"),
        Stmt::WithBlock(with) => refuse(with, "`with`"),
        Stmt::Set(set) => refuse(set, "`set`"),
        Stmt::SetBlock(set) => refuse(set, "`set`"),
        Stmt::AutoEscape(block) => refuse(block, "`autoescape`"),
        Stmt::FilterBlock(block) => refuse(block, "`filter`"),
        Stmt::Do(call) => refuse(call, "`do`"),
        // Those of other features; so are those that come to exist.
        #[allow(unreachable_patterns, reason = "depends on the features of the crate")]
        _ => Err(TemplateError::new("only `if` and `for` can be used in a template")),
    }
}

fn expression(one: &Expr<'_>) -> Result<(), TemplateError> {
    match one {
        Expr::Var(_) | Expr::Const(_) => Ok(()),
        Expr::UnaryOp(operation) => expression(&operation.expr),
        Expr::GetAttr(member) => expression(&member.expr),
        Expr::GetItem(member) => {
            expression(&member.expr)?;
            expression(&member.subscript_expr)
        }
        Expr::Slice(slice) => {
            let bounds = [&slice.start, &slice.stop, &slice.step];
            expression(&slice.expr)?;
            bounds.into_iter().flatten().try_for_each(expression)
        }
        Expr::BinOp(operation) => {
            if let Some(sign) = grows(operation.op) {
                return refuse(operation, sign);
            }
            expression(&operation.left)?;
            expression(&operation.right)
        }
        Expr::Compare(compared) => {
            expression(&compared.expr)?;
            compared.ops.iter().try_for_each(|operation| expression(&operation.expr))
        }
        Expr::IfExpr(choice) => {
            expression(&choice.test_expr)?;
            expression(&choice.true_expr)?;
            choice.false_expr.iter().try_for_each(expression)
        }
        Expr::Filter(filter) if FILTERS.contains(&filter.name) => {
            filter.expr.iter().try_for_each(expression)?;
            arguments(&filter.args)
        }
        Expr::Filter(filter) => refuse(filter, &format!("the filter `{}`", filter.name)),
        Expr::Test(test) => {
            expression(&test.expr)?;
            arguments(&test.args)
        }
        Expr::Call(call) => refuse(call, "a call"),
        Expr::List(list) => refuse(list, "a list"),
        Expr::Tuple(tuple) => refuse(tuple, "a list"),
        Expr::Map(map) => refuse(map, "a map"),
    }
}

fn arguments(all: &[CallArg<'_>]) -> Result<(), TemplateError> {
    all.iter().try_for_each(|argument| match argument {
        CallArg::Pos(value)
        | CallArg::Kwarg(_, value)
        | CallArg::PosSplat(value)
        | CallArg::KwargSplat(value) => expression(value),
    })
}

fn grows(operation: BinOpKind) -> Option<&'static str> {
    match operation {
        BinOpKind::Concat => Some("`~`"),
        BinOpKind::Add => Some("`+`"),
        BinOpKind::Mul => Some("`*`"),
        BinOpKind::Pow => Some("`**`"),
        _ => None,
    }
}

fn refuse<T>(at: &Spanned<T>, what: &str) -> Result<(), TemplateError> {
    Err(TemplateError::new(format!(
        "line {}: {what} cannot be used in a template; it has `if`, `for`, comparisons, the \
         filters {}, and values side by side: `{{{{ a }}}}{{{{ b }}}}`",
        at.span().start_line,
        FILTERS.join(", "),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_nesting_is_refused_before_recursion() {
        for (first, more, last) in [
            ("{{ 1", "-1", " }}"),
            ("{{ a", ".b", " }}"),
            ("{{ a", "[0]", " }}"),
            ("{{ a", "|d", " }}"),
            ("{{ ", "not ", "a }}"),
            ("{{ ", "-", "1 }}"),
            ("{{ ", "(", "1 }}"),
            ("{{ a", " if a else a", " }}"),
            ("{{ a", " and a", " }}"),
            ("{{ a", " is defined and a", " }}"),
            ("{% if a %}", "{% elif a %}", "{% endif %}"),
        ] {
            let syntax = crate::syntax();
            let long = format!("{first}{}{last}", more.repeat(100_000));
            assert!(check(&long, syntax.clone()).is_err(), "{first}{more}");
            let short = format!("{first}{}{last}", more.repeat(3));
            assert_eq!(check(&short, syntax).is_ok(), more != "(", "{short}");
        }
    }

    #[test]
    fn blocks_in_blocks_are_refused_too() {
        let deep = format!("{}{}", "{% if a %}".repeat(10_000), "{% endif %}".repeat(10_000));
        assert!(check(&deep, crate::syntax()).is_err());
    }
}
