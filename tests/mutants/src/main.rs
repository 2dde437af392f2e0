//! Writes source files that contain many small mistakes, each switched off: one build serves all of them. The mutant
//! whose number is in `AWAKE_MUTANT` is awake.
//!
//! The mistakes are those that cargo-mutants makes: a function that returns at once, another operator, a negation left
//! out, an arm of a match or its guard that never or always applies. Code inside macros stays as it is.

use std::{env, fs, path::Path, process::ExitCode};

use proc_macro2::Span;
use quote::{ToTokens, quote};
use syn::{
    Arm, Attribute, BinOp, Block, Expr, ExprMatch, ImplItemFn, Item, ItemFn, Pat, ReturnType, Signature, Type, UnOp,
    parse_quote,
    spanned::Spanned,
    visit::{self, Visit},
    visit_mut::{self, VisitMut},
};

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [folder, skipped, files @ ..] = arguments.as_slice() else {
        eprintln!("usage: tenure-mutants FOLDER SKIPPED FILE...: changes the files in the folder; prints the mutants");
        return ExitCode::FAILURE;
    };
    // Those that did not compile. They keep their numbers.
    let skipped = skipped.split(',').filter_map(|number| number.parse().ok()).collect();
    let mut mutants = Mutants { skipped, ..Mutants::default() };
    for file in files {
        let path = Path::new(folder).join(file);
        let read = fs::read_to_string(&path).map_err(|error| error.to_string());
        let parsed = read.and_then(|text| syn::parse_file(&text).map_err(|error| error.to_string()));
        let mut parsed = match parsed {
            Ok(parsed) => parsed,
            Err(error) => {
                eprintln!("{}: {error}", path.display());
                return ExitCode::FAILURE;
            }
        };
        mutants.file.clone_from(file);
        mutants.visit_file_mut(&mut parsed);
        if let Err(error) = fs::write(&path, prettyplease::unparse(&parsed)) {
            eprintln!("{}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    for mutant in &mutants.made {
        println!("{mutant}");
    }
    ExitCode::SUCCESS
}

#[derive(Default)]
struct Mutants {
    file: String,
    function: Vec<String>,
    /// Whether the visitor is inside a constant expression.
    is_const: usize,
    number: usize,
    skipped: Vec<usize>,
    made: Vec<String>,
}

impl Mutants {
    /// The condition under which a new mutant is awake. `None`: it does not compile.
    fn awake(&mut self, at: Span, what: &str) -> Option<Expr> {
        if self.is_const > 0 || self.function.is_empty() {
            return None;
        }
        self.number += 1;
        let number = self.number;
        if self.skipped.contains(&number) {
            return None;
        }
        let (file, line, function) = (&self.file, at.start().line, self.function.join("::"));
        self.made.push(format!("{number}\t{file}:{line}\t{function}\t{what}"));
        let number = u32::try_from(number).ok()?;
        Some(parse_quote!(crate::mutants::is_awake(#number)))
    }

    fn function(&mut self, attributes: &[Attribute], signature: &Signature, body: &mut Block) {
        if is_of_tests(attributes) {
            return;
        }
        self.is_const += usize::from(signature.constness.is_some());
        self.function.push(signature.ident.to_string());
        visit_mut::visit_block_mut(self, body);
        let span = signature.ident.span();
        for value in values(&signature.output) {
            if let Some(awake) = self.awake(span, &format!("returns {} at once", one_line(&value))) {
                body.stmts.insert(0, parse_quote!(if #awake { return #value; }));
            }
        }
        self.function.pop();
        self.is_const -= usize::from(signature.constness.is_some());
    }
}

/// What a function may return at once, by its type.
fn values(output: &ReturnType) -> Vec<Expr> {
    match output {
        ReturnType::Default => vec![parse_quote!(())],
        ReturnType::Type(_, of) => values_of(of),
    }
}

fn values_of(of: &Type) -> Vec<Expr> {
    let Type::Path(path) = of else {
        return match of {
            Type::Tuple(tuple) if tuple.elems.is_empty() => vec![parse_quote!(())],
            _ => Vec::new(),
        };
    };
    let Some(last) = path.path.segments.last() else { return Vec::new() };
    let inner = || match &last.arguments {
        syn::PathArguments::AngleBracketed(of) => of.args.iter().find_map(|argument| match argument {
            syn::GenericArgument::Type(of) => Some(values_of(of)),
            _ => None,
        }),
        _ => None,
    };
    match last.ident.to_string().as_str() {
        "bool" => vec![parse_quote!(true), parse_quote!(false)],
        "u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64" => vec![parse_quote!(0), parse_quote!(1)],
        "f64" => vec![parse_quote!(0.0), parse_quote!(1.0)],
        "String" => vec![parse_quote!(String::new())],
        "Duration" => vec![parse_quote!(std::time::Duration::ZERO)],
        "Vec" => vec![parse_quote!(Vec::new())],
        "Option" => {
            let some = inner().unwrap_or_default().into_iter().map(|value| parse_quote!(Some(#value)));
            std::iter::once(parse_quote!(None)).chain(some).collect()
        }
        "Result" => inner().unwrap_or_default().into_iter().map(|value| parse_quote!(Ok(#value))).collect(),
        _ => Vec::new(),
    }
}

/// The operators that replace this one.
fn others(op: &BinOp) -> Vec<BinOp> {
    match op {
        BinOp::Eq(_) => vec![parse_quote!(!=)],
        BinOp::Ne(_) => vec![parse_quote!(==)],
        BinOp::Lt(_) => vec![parse_quote!(>), parse_quote!(<=)],
        BinOp::Gt(_) => vec![parse_quote!(<), parse_quote!(>=)],
        BinOp::Le(_) => vec![parse_quote!(>), parse_quote!(<)],
        BinOp::Ge(_) => vec![parse_quote!(<), parse_quote!(>)],
        BinOp::And(_) => vec![parse_quote!(||)],
        BinOp::Or(_) => vec![parse_quote!(&&)],
        BinOp::Add(_) => vec![parse_quote!(-)],
        BinOp::Sub(_) => vec![parse_quote!(+)],
        BinOp::Mul(_) => vec![parse_quote!(/)],
        BinOp::Div(_) => vec![parse_quote!(*)],
        BinOp::AddAssign(_) => vec![parse_quote!(-=)],
        BinOp::SubAssign(_) => vec![parse_quote!(+=)],
        BinOp::BitOrAssign(_) => vec![parse_quote!(&=)],
        _ => Vec::new(),
    }
}

/// Whether a `let` of a chain of conditions is among these.
fn has_let(expr: &Expr) -> bool {
    struct Lets(bool);
    impl Visit<'_> for Lets {
        fn visit_expr_let(&mut self, _: &syn::ExprLet) {
            self.0 = true;
        }
        fn visit_expr_block(&mut self, _: &syn::ExprBlock) {}
        fn visit_expr_closure(&mut self, _: &syn::ExprClosure) {}
        fn visit_expr_if(&mut self, _: &syn::ExprIf) {}
        fn visit_expr_match(&mut self, _: &ExprMatch) {}
    }
    let mut lets = Lets(false);
    visit::visit_expr(&mut lets, expr);
    lets.0
}

fn one_line(tokens: &impl ToTokens) -> String {
    tokens.to_token_stream().to_string()
}

fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = one_line(&attribute.meta);
        text.starts_with("cfg (test") || text == "test" || text.starts_with("cfg (fuzzing")
    })
}

impl VisitMut for Mutants {
    fn visit_item_mut(&mut self, item: &mut Item) {
        match item {
            Item::Mod(of) if is_of_tests(&of.attrs) => {}
            Item::Const(_) | Item::Static(_) | Item::Macro(_) => {}
            item => visit_mut::visit_item_mut(self, item),
        }
    }

    fn visit_item_impl_mut(&mut self, item: &mut syn::ItemImpl) {
        let of = one_line(&item.self_ty);
        // `Debug` and `Display` are for people.
        let is_text = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
        if is_text.is_some_and(|last| last.ident == "Display" || last.ident == "Debug") {
            return;
        }
        self.function.push(of.split(' ').next().unwrap_or_default().to_owned());
        visit_mut::visit_item_impl_mut(self, item);
        self.function.pop();
    }

    fn visit_item_fn_mut(&mut self, item: &mut ItemFn) {
        self.function(&item.attrs, &item.sig, &mut item.block);
    }

    fn visit_impl_item_fn_mut(&mut self, item: &mut ImplItemFn) {
        self.function(&item.attrs, &item.sig, &mut item.block);
    }

    fn visit_impl_item_const_mut(&mut self, _: &mut syn::ImplItemConst) {}

    fn visit_type_mut(&mut self, _: &mut Type) {}

    fn visit_pat_mut(&mut self, _: &mut Pat) {}

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        visit_mut::visit_expr_mut(self, expr);
        match expr {
            Expr::Binary(binary) => {
                if has_let(&binary.left) || has_let(&binary.right) {
                    return;
                }
                let (op, span) = (binary.op, binary.op.span());
                let (left, right) = (binary.left.clone(), binary.right.clone());
                for other in others(&op) {
                    let what = format!("{} instead of {}", one_line(&other), one_line(&op));
                    if let Some(awake) = self.awake(span, &what) {
                        let asleep = expr.clone();
                        *expr = parse_quote!((if #awake { (#left) #other (#right) } else { #asleep }));
                    }
                }
            }
            Expr::Unary(unary) if matches!(unary.op, UnOp::Not(_)) => {
                let (inner, span) = (unary.expr.clone(), unary.op.span());
                if let Some(awake) = self.awake(span, "no !") {
                    let asleep = expr.clone();
                    *expr = parse_quote!((if #awake { #inner } else { #asleep }));
                }
            }
            _ => {}
        }
    }

    fn visit_expr_match_mut(&mut self, of: &mut ExprMatch) {
        visit_mut::visit_expr_match_mut(self, of);
        let has_rest = of.arms.iter().any(|arm| matches!(arm.pat, Pat::Wild(_)));
        for arm in &mut of.arms {
            self.arm(arm, has_rest);
        }
    }
}

impl Mutants {
    fn arm(&mut self, arm: &mut Arm, has_rest: bool) {
        let span = arm.pat.span();
        let pattern: String = one_line(&arm.pat).chars().take(60).collect();
        if let Some((_, guard)) = &arm.guard
            && !has_let(guard)
        {
            for value in [true, false] {
                let guard = arm.guard.as_ref().map(|(_, guard)| guard.clone());
                if let Some(awake) = self.awake(span, &format!("the guard of {pattern} is {value}")) {
                    arm.guard = Some((Default::default(), parse_quote!((if #awake { #value } else { #guard }))));
                }
            }
        }
        if has_rest && !matches!(arm.pat, Pat::Wild(_)) {
            let guard = match &arm.guard {
                Some((_, guard)) if has_let(guard) => return,
                Some((_, guard)) => quote!(#guard),
                None => quote!(true),
            };
            if let Some(awake) = self.awake(span, &format!("no arm {pattern}")) {
                arm.guard = Some((Default::default(), parse_quote!((!#awake && (#guard)))));
            }
        }
    }
}
