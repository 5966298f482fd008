//! Reads a disassembly: its functions, their innermost loops, and what each instruction does
//! there. It reads what `llvm-objdump` prints for x86-64 (in Intel's syntax) and for AArch64.

use std::collections::{BTreeSet, HashSet};

use petgraph::Direction::Incoming;
use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::NodeFiltered;

/// The options that `llvm-objdump` is called with, besides the file.
pub(crate) const OBJDUMP_OPTIONS: [&str; 5] =
    ["--disassemble", "--demangle", "--no-show-raw-insn", "--show-all-symbols", "--x86-asm-syntax=intel"];

/// What an instruction does in a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InstructionKind {
    /// A multiply-add into a vector register.
    MultiplyAdd,
    /// A load into a register, plain or broadcast.
    Load,
    /// A prefetch.
    Prefetch,
    /// Arithmetic on general registers, comparisons and jumps: counters and pointers.
    Counter,
    /// A call. A jump out of the function counts as one.
    Call,
    /// Anything else: stores, shuffles, copies of registers, other arithmetic.
    Other,
}

/// What an instruction does with the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stack {
    /// Nothing.
    Untouched,
    /// It moves a general register: an address or a counter for which no register was left.
    Scalar,
    /// It moves or reads a vector: a spill, its reload, or an array in memory.
    Vector,
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instruction {
    /// Its address.
    pub(crate) address: u64,
    /// The text that the disassembler prints, without comments.
    pub(crate) text: String,
    /// What it is.
    pub(crate) kind: InstructionKind,
    /// Whether it reads or writes the stack.
    pub(crate) stack: Stack,
    /// Whether it names a vector register.
    pub(crate) is_vector: bool,
    /// The address that it may jump to.
    target: Option<u64>,
}

/// One function.
#[derive(Debug, Clone, Default)]
pub(crate) struct Function {
    /// Its names. There are several if the compiler merged equal functions.
    pub(crate) names: Vec<String>,
    /// The instructions, in order of address.
    pub(crate) instructions: Vec<Instruction>,
}

impl Function {
    /// The loops that contain no other loop, each with its instructions in order of address.
    ///
    /// A loop is a set of instructions that all lead to one another. The loops inside it are
    /// those that remain when the instructions at which it is entered are removed.
    pub(crate) fn inner_loops(&self) -> Vec<Vec<&Instruction>> {
        let graph = self.flow();
        let mut inner = Vec::new();
        let mut pending = loops_among(&graph, &graph.node_indices().collect());
        while let Some(nodes) = pending.pop() {
            let is_entry =
                |node: &NodeIndex| graph.neighbors_directed(*node, Incoming).any(|from| !nodes.contains(&from));
            let mut rest: BTreeSet<_> = nodes.iter().copied().filter(|node| !is_entry(node)).collect();
            if rest.len() == nodes.len() {
                // If no entry is known, the loop's first instruction is taken for it.
                rest.pop_first();
            }
            let nested = loops_among(&graph, &rest);
            if nested.is_empty() {
                inner.push(nodes.iter().map(|node| &self.instructions[node.index()]).collect());
            }
            pending.extend(nested);
        }
        inner.sort_by_key(|body: &Vec<&Instruction>| body[0].address);
        inner
    }

    /// Which instruction may follow which. Instructions that nothing leads to are taken for the
    /// targets of computed jumps.
    fn flow(&self) -> DiGraph<(), ()> {
        let count = self.instructions.len();
        let mut graph = DiGraph::with_capacity(count, count);
        let nodes: Vec<_> = (0..count).map(|_| graph.add_node(())).collect();
        let at = |address| self.instructions.binary_search_by_key(&address, |i| i.address).ok();
        for (i, instruction) in self.instructions.iter().enumerate() {
            let next = if instruction.ends_flow() { None } else { nodes.get(i + 1) };
            let target = instruction.target.and_then(at).map(|target| &nodes[target]);
            for to in next.into_iter().chain(target) {
                graph.update_edge(nodes[i], *to, ());
            }
        }
        let orphans: Vec<_> = graph.externals(Incoming).filter(|node| node.index() > 0).collect();
        for (i, _) in self.instructions.iter().enumerate().filter(|(_, i)| i.is_computed_jump()) {
            for orphan in &orphans {
                graph.update_edge(nodes[i], *orphan, ());
            }
        }
        graph
    }
}

/// The outermost loops that remain among some nodes.
fn loops_among(graph: &DiGraph<(), ()>, nodes: &BTreeSet<NodeIndex>) -> Vec<BTreeSet<NodeIndex>> {
    let among = NodeFiltered::from_fn(graph, |node| nodes.contains(&node));
    let components = kosaraju_scc(&among).into_iter();
    let loops = components.filter(|c| c.len() > 1 || graph.contains_edge(c[0], c[0]));
    loops.map(BTreeSet::from_iter).collect()
}

/// The architectures that are supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Architecture {
    X86,
    Arm,
}

/// Reads what `llvm-objdump` prints with [`OBJDUMP_OPTIONS`].
///
/// # Errors
/// If the file is of another architecture.
pub(crate) fn parse(text: &str) -> Result<Vec<Function>, String> {
    let mut architecture = None;
    let mut functions: Vec<Function> = Vec::new();
    for line in text.lines() {
        if let Some((_, format)) = line.split_once("file format ") {
            architecture = Some(match format {
                _ if format.contains("x86-64") => Architecture::X86,
                _ if format.contains("aarch64") || format.contains("arm64") => Architecture::Arm,
                _ => return Err(format!("instructions of {format} are not understood")),
            });
        } else if let Some(name) = symbol(line) {
            match functions.last_mut() {
                Some(last) if last.instructions.is_empty() => last.names.push(String::from(name)),
                _ => functions.push(Function { names: vec![String::from(name)], instructions: Vec::new() }),
            }
        } else if let Some((address, rest)) = line.split_once(':')
            && let Ok(address) = u64::from_str_radix(address.trim(), 16)
            && let (Some(architecture), Some(function)) = (architecture, functions.last_mut())
        {
            function.instructions.push(Instruction::parse(architecture, address, rest));
        }
    }
    for function in &mut functions {
        function.find_tail_calls();
        function.follow_stack_pointers();
    }
    Ok(functions)
}

/// The name in `0000000000036a60 <name>:`. The marks `$x` and `$d` in AArch64 objects are not
/// names.
fn symbol(line: &str) -> Option<&str> {
    let (address, name) = line.strip_suffix(">:")?.split_once(" <")?;
    (u64::from_str_radix(address, 16).is_ok() && !name.starts_with('$')).then_some(name)
}

impl Instruction {
    /// `rest` is the text after the address.
    fn parse(architecture: Architecture, address: u64, rest: &str) -> Self {
        // Comments begin with `# ` (x86-64), `// ` or `; ` (AArch64, where `#` is a number's sign).
        let comment = match architecture {
            Architecture::X86 => rest.find("# "),
            Architecture::Arm => rest.find("//").or_else(|| rest.find("; ")),
        };
        let text = rest[..comment.unwrap_or(rest.len())].split_whitespace().collect::<Vec<_>>().join(" ");
        let (name, operands) = text.split_once(' ').unwrap_or((&text, ""));
        let is_vector = words(operands).any(|word| is_vector_register(architecture, word));
        let (kind, is_jump) = match architecture {
            Architecture::X86 => (x86(name, operands), name.starts_with('j')),
            Architecture::Arm => (arm(name, is_vector), is_arm_jump(name)),
        };
        // The target is written as `0x30c <function+0x30c>`. In AArch64 a register and a bit may
        // come before it.
        let target = operands.split(" <").next().and_then(|all| all.rsplit(' ').next()).unwrap_or_default();
        let target = target.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let target = if is_jump { target } else { None };
        Self { address, kind, stack: Stack::Untouched, is_vector, target, text }
    }

    fn name(&self) -> &str {
        self.text.split(' ').next().unwrap_or_default()
    }

    /// The operands, as text.
    fn operands(&self) -> &str {
        self.text.split_once(' ').map_or("", |(_, operands)| operands)
    }

    /// Whether the next instruction in memory cannot be the next one in time.
    fn ends_flow(&self) -> bool {
        matches!(self.name(), "jmp" | "ret" | "ud2" | "int3" | "b" | "br" | "udf" | "brk")
    }

    /// Whether it jumps to an address that was computed.
    fn is_computed_jump(&self) -> bool {
        self.name() == "br" || self.name() == "jmp" && self.target.is_none()
    }

    /// Whether it may jump to an address.
    pub(crate) fn jumps(&self) -> bool {
        self.target.is_some()
    }

    /// The number of vector registers that a load fills. They come before the address.
    pub(crate) fn loaded_registers(&self) -> usize {
        let (registers, _) = self.operands().split_once('[').unwrap_or_default();
        let is_vector =
            |word: &&str| [Architecture::X86, Architecture::Arm].iter().any(|a| is_vector_register(*a, word));
        if self.kind == InstructionKind::Load { words(registers).filter(is_vector).count() } else { 0 }
    }

    /// The text in brackets: the registers and numbers of an address.
    fn memory(&self) -> Option<&str> {
        let (_, rest) = self.text.split_once('[')?;
        rest.split(']').next()
    }
}

/// The words of an operand list.
fn words(operands: &str) -> impl Iterator<Item = &str> {
    operands.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty())
}

fn is_vector_register(architecture: Architecture, word: &str) -> bool {
    let prefixes: &[&str] = match architecture {
        Architecture::X86 => &["xmm", "ymm", "zmm"],
        Architecture::Arm => &["v", "q", "d", "s", "h"],
    };
    let number = prefixes.iter().find_map(|prefix| word.strip_prefix(prefix));
    number.is_some_and(|number| number.parse::<u8>().is_ok())
}

/// The kind of an x86-64 instruction.
fn x86(name: &str, operands: &str) -> InstructionKind {
    let first = operands.split(',').next().unwrap_or_default();
    let writes_memory = first.contains('[');
    match name {
        _ if name.starts_with("call") => InstructionKind::Call,
        _ if name.starts_with("prefetch") => InstructionKind::Prefetch,
        _ if name.starts_with('j') => InstructionKind::Counter,
        "cmp" | "test" | "nop" => InstructionKind::Counter,
        _ if writes_memory => InstructionKind::Other,
        _ if name.starts_with("vfmadd") || name.starts_with("vfnmadd") => InstructionKind::MultiplyAdd,
        _ if ["mov", "vmov", "vbroadcast"].iter().any(|load| name.starts_with(load)) && operands.contains('[') => {
            InstructionKind::Load
        }
        "add" | "sub" | "inc" | "dec" | "lea" | "and" | "shl" | "mov" => InstructionKind::Counter,
        _ => InstructionKind::Other,
    }
}

/// The kind of an AArch64 instruction. Instructions on vectors and on counters have the same
/// names.
fn arm(name: &str, is_vector: bool) -> InstructionKind {
    match name {
        "bl" | "blr" => InstructionKind::Call,
        "prfm" | "prfum" => InstructionKind::Prefetch,
        _ if is_arm_jump(name) => InstructionKind::Counter,
        _ if ["fmla", "fmls", "bfmla", "bfmmla", "bfdot"].iter().any(|fma| name.starts_with(fma)) => {
            InstructionKind::MultiplyAdd
        }
        _ if name.starts_with("ld") => InstructionKind::Load,
        "add" | "adds" | "sub" | "subs" | "cmp" | "cmn" | "lsl" | "and" | "nop" if !is_vector => {
            InstructionKind::Counter
        }
        _ => InstructionKind::Other,
    }
}

fn is_arm_jump(name: &str) -> bool {
    name == "b" || name.starts_with("b.") || matches!(name, "cbz" | "cbnz" | "tbz" | "tbnz")
}

/// A general register by the name of its full width: `rax` for `eax`, `r9` for `r9d`, `x3` for
/// `w3`.
fn full_width(register: &str) -> String {
    if let Some(number) = register.strip_prefix('w').filter(|number| number.parse::<u8>().is_ok()) {
        format!("x{number}")
    } else if let Some(rest) = register.strip_prefix('e') {
        format!("r{rest}")
    } else if register.starts_with('r') && register[1..].starts_with(|c: char| c.is_ascii_digit()) {
        String::from(register.trim_end_matches(['d', 'w', 'b']))
    } else {
        String::from(register)
    }
}

impl Function {
    /// Marks a jump out of the function at its end as a call.
    fn find_tail_calls(&mut self) {
        let (Some(first), Some(last)) = (self.instructions.first(), self.instructions.last()) else { return };
        let inside = first.address..=last.address;
        for instruction in &mut self.instructions {
            if instruction.target.is_some_and(|target| !inside.contains(&target)) {
                instruction.kind = InstructionKind::Call;
            }
        }
    }

    /// Marks the instructions that use the stack. They do so through the stack pointer, or
    /// through a register that was last computed from it (in order of address): a frame pointer,
    /// or the address of an array on the stack.
    fn follow_stack_pointers(&mut self) {
        let mut pointers: HashSet<String> = ["rsp", "sp"].map(String::from).into();
        let is_pointer =
            |pointers: &HashSet<String>, text: &str| words(text).any(|word| pointers.contains(&full_width(word)));
        for instruction in &mut self.instructions {
            let name = String::from(instruction.name());
            let is_address_only = name == "lea" || name == "nop";
            if !is_address_only && instruction.memory().is_some_and(|memory| is_pointer(&pointers, memory)) {
                instruction.stack = if instruction.is_vector { Stack::Vector } else { Stack::Scalar };
            }
            let (register, sources) = instruction.operands().split_once(',').unwrap_or((instruction.operands(), ""));
            let register = full_width(register);
            // AArch64's stores name the register that they read first.
            let only_reads =
                matches!(name.as_str(), "cmp" | "test" | "push" | "nop" | "cmn" | "tst" | "ccmp" | "stp" | "stur")
                    || name.starts_with("str")
                    || instruction.target.is_some()
                    || register.contains('[')
                    || matches!(register.as_str(), "rsp" | "sp");
            if only_reads {
                continue;
            }
            let computes = match name.as_str() {
                // The base is the first register of the address.
                "lea" => instruction
                    .memory()
                    .is_some_and(|memory| is_pointer(&pointers, memory.split(' ').next().unwrap_or_default())),
                "mov" | "add" | "sub" if !sources.contains('[') => {
                    // x86-64's instructions have two operands, and the first one is also read.
                    let keeps = name != "mov" && !sources.contains(',') && pointers.contains(&register);
                    keeps || is_pointer(&pointers, sources.split(',').next().unwrap_or_default())
                }
                "inc" | "dec" => pointers.contains(&register),
                _ => false,
            };
            if computes {
                pointers.insert(register);
            } else {
                pointers.remove(&register);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X86: &str = "
libexample.rlib(a.o):\tfile format elf64-x86-64

Disassembly of section .text:

0000000000000000 <tile>:
0000000000000000 <same_tile>:
       0:      \tsub\trsp, 0x88
       7:      \tlea\trax, [rsp + 0x40]
       c:      \tmov\tr9d, dword ptr [rsi + 4*r8]
      10:      \tvmovups\tzmm24, zmmword ptr [rdx + 4*r9]
      17:      \tvfmadd231ps\tzmm14, zmm24, dword ptr [rcx]{1to16} # zmm14 = (zmm24 * mem) + zmm14
      1d:      \tvfmadd231ps\tzmm15, zmm24, zmmword ptr [rsp + 0x20]
      25:      \tvmovups\tzmmword ptr [rax], zmm15
      2b:      \tmov\trdx, qword ptr [rsp + 0x8]
      30:      \tprefetcht1\tbyte ptr [rdi]
      33:      \tcall\t0x38 <tile+0x38>
      38:      \tinc\tr8
      3b:      \tcmp\tr8, rdi
      3e:      \tjne\t0xc <tile+0xc>
      40:      \tmov\teax, dword ptr [rcx]
      43:      \tvmovups\tzmmword ptr [rax], zmm15
      49:      \tjmp\t0x400 <elsewhere>

0000000000000400 <elsewhere>:
     400:      \tret
";

    const ARM: &str = "
a.o:\tfile format elf64-littleaarch64

0000000000000000 <$x>:
0000000000000000 <tile>:
       0:      \tadd\tx29, sp, #0x40
       4:      \tldr\tq1, [x8], #16
       8:      \tldrsw\tx9, [x10, x11, lsl #2]
       c:      \tfmla\tv0.4s, v1.4s, v2.s[3]
      10:      \tstr\tq0, [x29, #-16]
      14:      \tldr\tx3, [sp, #8]
      18:      \tprfm\tpldl2keep, [x4]
      1c:      \tsubs\tx12, x12, #0x1
      20:      \tcbnz\tx12, 0x4 <tile+0x4>
      24:      \tb\t0x0 <tile> // far
      28:      \tret
";

    fn kinds(instructions: &[&Instruction]) -> Vec<InstructionKind> {
        instructions.iter().map(|i| i.kind).collect()
    }

    fn on_stack(function: &Function, stack: Stack) -> Vec<u64> {
        function.instructions.iter().filter(|i| i.stack == stack).map(|i| i.address).collect()
    }

    #[test]
    fn x86_loops_and_stack() {
        use InstructionKind::{Call, Counter, Load, MultiplyAdd, Other, Prefetch};
        let functions = parse(X86).unwrap();
        assert_eq!(functions.len(), 2);
        assert_eq!(functions[0].names, ["tile", "same_tile"]);
        let loops = functions[0].inner_loops();
        assert_eq!(loops.len(), 1);
        let expected = [Load, Load, MultiplyAdd, MultiplyAdd, Other, Load, Prefetch, Call, Counter, Counter, Counter];
        assert_eq!(kinds(&loops[0]), expected);
        // At 0x43 `rax` has another value.
        assert_eq!(on_stack(&functions[0], Stack::Vector), [0x1d, 0x25]);
        assert_eq!(on_stack(&functions[0], Stack::Scalar), [0x2b]);
        assert_eq!(functions[0].instructions.last().unwrap().kind, Call, "a jump out of the function");
        assert!(functions[1].inner_loops().is_empty());
    }

    #[test]
    fn arm_loops_and_stack() {
        use InstructionKind::{Counter, Load, MultiplyAdd, Other, Prefetch};
        let functions = parse(ARM).unwrap();
        assert_eq!(functions[0].names, ["tile"]);
        let loops = functions[0].inner_loops();
        assert_eq!(loops.len(), 1, "the jump at 0x24 closes an outer loop");
        assert_eq!(kinds(&loops[0]), [Load, Load, MultiplyAdd, Other, Load, Prefetch, Counter, Counter]);
        assert_eq!(on_stack(&functions[0], Stack::Vector), [0x10]);
        assert_eq!(on_stack(&functions[0], Stack::Scalar), [0x14]);
    }

    #[test]
    fn vectors_are_no_counters() {
        let arm = |text: &str| Instruction::parse(Architecture::Arm, 0, text);
        for name in ["add", "sub", "and"] {
            assert_eq!(arm(&format!("{name}\tv0.4s, v1.4s, v2.4s")).kind, InstructionKind::Other, "{name}");
            assert_eq!(arm(&format!("{name}\tx0, x1, x2")).kind, InstructionKind::Counter, "{name}");
        }
    }

    #[test]
    fn loaded_registers_are_vectors_before_the_address() {
        let arm = |text: &str| Instruction::parse(Architecture::Arm, 0, text).loaded_registers();
        assert_eq!(arm("ldp\tq0, q1, [x8], #32"), 2);
        assert_eq!(arm("ld1\t{ v0.4s, v1.4s, v2.4s }, [x8]"), 3);
        assert_eq!(
            (arm("ldr\ts1, [x8, #16]"), arm("ldrsw\tx9, [x10, x11, lsl #2]"), arm("fmla\tv0.4s, v1.4s, v2.s[3]")),
            (1, 0, 0)
        );
        let load = Instruction::parse(Architecture::X86, 0, "vmovups\tzmm24, zmmword ptr [rdx + 4*r9]");
        assert_eq!(load.loaded_registers(), 1);
    }

    /// A loop that is entered at its test in the middle, and a jump back to a block that does not
    /// lead to the jump again.
    #[test]
    fn loops_are_found_by_flow_not_by_address() {
        let text = "
a.o:\tfile format elf64-x86-64

0000000000000000 <rotated>:
       0:      \tjmp\t0x8 <rotated+0x8>
       2:      \tinc\trax
       4:      \tret
       8:      \tcmp\trax, rbx
       b:      \tje\t0x20 <rotated+0x20>
       e:      \tinc\trax
      11:      \tjmp\t0x8 <rotated+0x8>
      20:      \tvaddps\tzmm0, zmm0, zmm1
      26:      \tjmp\t0x2 <rotated+0x2>
";
        let functions = parse(text).unwrap();
        let loops = functions[0].inner_loops();
        let addresses: Vec<Vec<_>> = loops.iter().map(|body| body.iter().map(|i| i.address).collect()).collect();
        assert_eq!(addresses, [[0x8, 0xb, 0xe, 0x11]]);
    }

    #[test]
    fn other_architectures_are_refused() {
        assert!(parse("a.o: file format elf32-littleriscv\n").unwrap_err().contains("elf32-littleriscv"));
    }
}
