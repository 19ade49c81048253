//! The table of rules: what `casepack explain` and `docs/rules.md` say.
//!
//! Sorted by name (a test). A rule's name is stable: scripts and `--allow` rest on it.

use super::Severity;

/// What is said about one rule.
#[derive(Debug)]
pub struct RuleInfo {
    /// The stable name, as in `--deny` and JSON.
    pub name: &'static str,
    /// How bad it is unless the finding says otherwise.
    pub severity: Severity,
    /// Whether `--allow` turns it off.
    pub allowable: bool,
    /// What was found, in one sentence.
    pub summary: &'static str,
    /// Why it matters; may be empty.
    pub why: &'static str,
    /// How to mend it.
    pub fix: &'static str,
    /// Input that shows it; may be empty.
    pub example: &'static str,
}

macro_rules! rules {
    ($($variant:ident $name:literal $severity:ident $allowable:literal
       $summary:literal
       $why:literal
       $fix:literal
       $example:literal)*) => {
        /// A kind of finding. The variants are the rules of `docs/rules.md` in camel case.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Rule {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl Rule {
            /// Every rule, sorted by name.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// What is said about it.
            pub fn info(self) -> &'static RuleInfo {
                match self {
                    $(Self::$variant => &RuleInfo {
                        name: $name, severity: Severity::$severity, allowable: $allowable,
                        summary: $summary, why: $why, fix: $fix, example: $example,
                    },)*
                }
            }
        }
    };
}

impl Rule {
    /// The stable name.
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// The rule of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|rule| rule.name() == name)
    }

    /// Whether `--allow` turns it off: warnings and notes, and the errors that say so.
    pub fn may_be_allowed(self) -> bool {
        self.info().allowable || self.info().severity == Severity::Note
    }
}

rules! {
    AbsolutePath "absolute-path" Error false
        "A path that must be relative starts with a slash."
        "Cases move between machines; an absolute path means another file on each of them."
        "Write the path relative to the case directory (entries of workspace.files, outputs) or to the workspace (dest)."
        "workspace: {files: [/etc/hosts]}"
    AgentOptionIgnored "agent-option-ignored" Note false
        "A runner option does not reach this target."
        "Packages say what to do, not which agent does it; agent options belong to the run."
        "Give the option to the program that runs the packages; `casepack run` fills it into a runner.command that names it, for example {model}, and sets runner.env."
        "runner: {effort: high}"
    AnswerKeyInWorkspace "answer-key-in-workspace" Error true
        "An entry would hand the answer key to the agent."
        "annotations, references and judge material are what the agent is judged by; an agent that can read them is not being tested."
        "List only the files that the agent needs. If it really must see this file, allow the rule by name: --allow answer-key-in-workspace."
        "workspace: {files: [annotations.yaml]}"
    AnswerKeyReadable "answer-key-readable" Warning true
        "In this layout the agent can read evaluation material."
        "EvalHub's stock adapters run the agent in the very directory that judges read."
        "Use packages or bundles for cases whose answers must stay secret; nothing has to be done if the judge pod is another one."
        "annotations.yaml in dist/evalhub/cases/case-001"
    BadSegment "bad-segment" Error false
        "A name that becomes one path component or command word is not usable as one."
        "Slashes, backslashes, control characters, `.` and `..` in such a name would lead to another place."
        "Use letters, digits, dots, dashes and underscores."
        "execution: {steps: [{id: a/b, skill: x}]}"
    BadValue "bad-value" Error false
        "A field has a value outside of what it may be."
        "The programs that read this field refuse the value or do something else than it says."
        "Use one of the values that the message lists."
        "execution: {mode: parallel}"
    BaselineDiffers "baseline-differs" Warning true
        "The run that is compared with is of another dataset, or was judged by another measure."
        "What differs may then come from the cases and not from the agent."
        "Compare with a run of the same dataset, --pass-at and --attempts."
        "casepack report monday --baseline other-dataset"
    BatchFilesIgnored "batch-files-ignored" Warning true
        "In batch mode per-case entries of workspace.files are ignored."
        "All cases share one workspace, so there is no place for a file of one case."
        "Use execution.mode: case, or turn the entry into a shared {dest, source}."
        "execution: {mode: batch}"
    BatchIncomplete "batch-incomplete" Warning true
        "A batch was built with some of its cases only."
        "All cases share one workspace and one batch.yaml; one of some cases would be another batch."
        "Build the workspace target without --case and --shard."
        "casepack build --target workspace --shard 1/2"
    BothDownloads "both-downloads" Warning true
        "A benchmark names both an S3 prefix for its adapter and test data for EvalHub."
        "The agent-eval adapter downloads only when it finds no files beside its config; what it finds depends on the image."
        "Leave `parameters.s3_prefix` or `test_data_ref` out."
        "parameters: {s3_prefix: a/}, test_data_ref: {s3: …}"
    BucketName "bucket-name" Error false
        "A bucket has a name that buckets can not have."
        "EvalHub takes any text, and the job then fails when its pod starts."
        "Write 3 to 63 small letters, digits, dots and dashes, a letter or digit first and last."
        "bucket: NOT A BUCKET"
    BundledVerifierLimits "bundled-verifier-limits" Warning true
        "A judge asks for something that the bundled judge runner can not do."
        "Packages carry a judge runner of their own that needs only python3; agent judges and some builtins need the harness."
        "Use --verifier harness with an image that has the harness, or drop the judge from packages with --no-llm-judges."
        "judges: [{name: deep, prompt: p, agent: {timeout: 60}}]"
    CallersVariables "callers-variables" Warning true
        "What is run asks for variables of the caller's environment and gets them."
        "Packages of others can ask for any credential that is set, and agents have a network to send it by."
        "Start casepack in an environment without those that they must not have, or allow it if you trust who wrote the packages."
        "environment.env in task.toml: {X = \"${AWS_SECRET_ACCESS_KEY}\"}"
    CanaryLine "canary-line" Error false
        "The instruction's first line would be deleted by Harbor."
        "Harbor removes leading lines that look like a canary marker: a comment with the word \"canary\" in it."
        "Begin the instruction with another line."
        "prompt: \"# Find the canary bug\""
    CaseNameChanged "case-name-changed" Note false
        "A case id is no valid name in this target and was replaced."
        "Harbor accepts only letters, digits, dots, dashes and underscores, and skips other packages in silence."
        "Nothing has to be done; the id stays in [metadata].case_id. Rename the case directory to have the same name everywhere."
        "cases/case 1 → case-1-4f0c5a1b2c3d"
    CaseNameClash "case-name-clash" Error false
        "Two cases get the same name in this target."
        "Names are compared without regard to letter case, since disks and container names are."
        "Rename one of the case directories."
        "cases/Case-1 and cases/case-1"
    ChangeMe "change-me" Warning true
        "A place in a file for EvalHub is still to be filled in."
        "`casepack emit evalhub` knows what was published; model, image and keys only you know."
        "Edit the file, or give the value as a flag: --model, --model-url, --adapter-image, --adapter-command. Keys belong into the Secret only."
        "image: CHANGE-ME"
    CheckImport "check-import" Warning true
        "A check imports a module that the image of the packages does not have."
        "Unless --image or --base-image is given, packages run in an image with Python and nothing else, and there such a judge ends in an error."
        "Build with --base-image or --image and an image that has the module, or do without it."
        "check: \"import yaml; return True\""
    CheckSyntax "check-syntax" Error false
        "A check is no valid Python."
        "It would fail in every package, at the end of every run."
        "Mend the code at the line that Python names."
        "check: \"return ((1)\""
    ChecksNotCompiled "checks-not-compiled" Warning true
        "Checks were not compiled because no python3 was found."
        "A syntax error would then be seen only when a package is verified."
        "Install python3 on the machine that builds."
        ""
    CollectionSecretRef "collection-secret-ref" Error false
        "The Secret of a bucket has the wrong key for this kind of file."
        "A collection in a file of the server has `secretref`, and with `secret_ref` the server does not start; requests have `secret_ref`."
        "Write `secretref` in collection files (YAML) and `secret_ref` in requests (JSON)."
        "s3: {bucket: b, key: k/, secret_ref: s}"
    CommandPlaceholder "command-placeholder" Warning true
        "A placeholder in runner.command is not known."
        "It stays in the command as it is written."
        "Use one of the known placeholders or a field of the input."
        "command: \"agent --file {fle}\""
    ConfigNotFound "config-not-found" Error false
        "No dataset was found at this path."
        "casepack looks for eval.yaml, casepack.yaml or Harbor task directories."
        "Give the path of a config or of a directory that holds one; `casepack init DIR` writes an example."
        "casepack build nowhere"
    DatasetAmbiguous "dataset-ambiguous" Error false
        "Two formats were found at this path."
        "casepack does not guess which one is meant."
        "Name the file itself, or give --format."
        ""
    DatasetNotFound "dataset-not-found" Error false
        "The directory that holds the cases is missing."
        "dataset.path is relative to the directory of the config."
        "Correct dataset.path, or create the directory."
        "dataset: {path: cases}"
    DeprecatedField "deprecated-field" Warning true
        "A field has a newer name."
        "The old one will go away in the programs that read it."
        "Move the value to the field that the message names."
        "skill: triage"
    Duplicate "duplicate" Error false
        "A name that must be unique is used twice."
        "The second one would replace the first, or both would fail."
        "Rename one of them."
        "execution: {steps: [{id: a, …}, {id: a, …}]}"
    DuplicateKey "duplicate-key" Warning true
        "A mapping has a key twice."
        "The programs that read this file take the last one and say nothing."
        "Remove one of the two."
        "name: a\nname: b"
    Empty "empty" Error false
        "A value that is needed is empty."
        "There is no sensible default for it."
        "Write a value."
        "reward: {judge: \"\"}"
    EmptyDirectory "empty-directory" Note false
        "An empty directory is not carried."
        "Directories exist because files do; archives, stores and git do not keep empty ones."
        "Put a file into it, or declare it in outputs: it is created before the agent starts."
        ""
    ExactlyOne "exactly-one" Error false
        "Exactly one of several fields must be given."
        "They are alternatives."
        "Keep one of them."
        "seeds: [{category: a, count: 1, prompt: p, builtin: b}]"
    ExecutableBitLost "executable-bit-lost" Warning true
        "A file is executable, and plain objects do not carry that."
        "EvalHub's downloaders make every file with mode 0644."
        "Call the file by its interpreter, or use packages or bundles, which keep the mode."
        "cases/case-001/run.sh with mode 0755"
    ExperimentNeedsMlflow "experiment-needs-mlflow" Warning true
        "A job names an experiment."
        "A server without MLflow refuses such a job (mlflow_required_for_experiment)."
        "Leave `experiment` out, or allow the rule where the server has MLflow."
        "experiment: {name: triage}"
    FileChanged "file-changed" Error false
        "A file changed while it was read."
        "What was read is neither the old nor the new content."
        "Run the command again when nothing else writes there."
        ""
    FileUnreadable "file-unreadable" Error false
        "A file of the dataset can not be read."
        ""
        "Make it readable for the user who runs casepack, or remove it."
        ""
    ForeignObject "foreign-object" Error true
        "Below the prefix is an object that casepack did not write."
        "The stock downloaders take whatever they find below the prefix; casepack overwrites and removes only what it recorded as its own."
        "Use a prefix of its own for each dataset, or remove the object; --force overwrites what is in the way."
        "s3://bucket/triage/cases/old/input.yaml"
    HarborDigestIgnores "harbor-digest-ignores" Warning true
        "A workspace file is not part of Harbor's digest of the package."
        "Harbor uploads every file of the workspace, but its digest leaves caches and editor files out by name: __pycache__/, *.pyc, .DS_Store, *.swp, *.swo, *~."
        "Rename the file, or leave it out of workspace.files."
        "workspace: {files: [notes.txt~]}"
    HarborEnvironmentName "harbor-environment-name" Error false
        "A workspace file has a name at which Harbor stops uploading the workspace."
        "With docker_image, a Dockerfile or docker-compose.yaml at the top of environment/ means \"build this\", and nothing is uploaded."
        "Put the file into a directory, or build without --image."
        "workspace: {files: [Dockerfile]}"
    HooksNotPortable "hooks-not-portable" Warning true
        "Hooks do not run, neither in packages nor in local runs on them."
        "Harbor has no place for them; what they stage or check is missing there."
        "Make what they stage part of the case: list it in workspace.files."
        "hooks: {before_each: [{command: ./stage.sh}]}"
    ImageWithoutDigest "image-without-digest" Error false
        "The strict profile wants an image that is pinned by its digest."
        "A tag can point to another image tomorrow."
        "Write the image as name@sha256:… ."
        "--image python:3.12"
    InputInvalid "input-invalid" Error false
        "The input file of a case can not be used."
        "Templates and judges need its fields."
        "Mend the file at the place that is shown."
        "input.yaml: \"prompt: [unclosed\""
    InputMissing "input-missing" Error false
        "A case has no input file."
        "Every case needs input.yaml, input.yml or input.json; it is what the agent sees."
        "Add an input.yaml, or move the directory out of the dataset."
        ""
    JobTooLarge "job-too-large" Warning true
        "A job is larger than the ConfigMap that it has to fit into."
        "EvalHub writes it to a ConfigMap, which holds 1 MiB."
        "Give fewer or shorter parameters, or split the job."
        ""
    JudgeBranchUncovered "judge-branch-uncovered" Warning true
        "A conditional judge always runs or never runs."
        "Its condition reads a field that has one value in all cases, so one branch is never tested."
        "Add a case with another value."
        "if: annotations.get('is_duplicate')"
    JudgeFileMissing "judge-file-missing" Error false
        "A judge needs a file that is not there."
        "It could not give a verdict in any package."
        "Correct the path; it is looked for under the project root, then beside the config."
        "prompt_file: prompts/quality.md"
    JudgeWithoutKind "judge-without-kind" Warning true
        "A judge has nothing to judge with."
        "It needs one of check, prompt, prompt_file, llm_rubric, module + function or builtin; without one it is skipped."
        "Add one, or remove the judge."
        "judges: [{name: quality}]"
    KeyWithoutSlash "key-without-slash" Error false
        "The key of test data does not end with a slash."
        "EvalHub's downloader takes the key as the beginning of a text: `data/v1` fetches `data/v10/…` as well."
        "Add the slash."
        "key: data/v1"
    KubernetesName "kubernetes-name" Error false
        "A Secret, a claim or a queue has a name that Kubernetes does not take."
        "EvalHub takes any text, and the pod then waits for something that can not exist."
        "Write 1 to 63 small letters, digits and dashes, a letter or digit first and last."
        "secret_ref: S_S"
    LargeDownload "large-download" Warning true
        "The objects may not fit on the disk of the pod."
        "EvalHub asks for no disk space, and agent-eval copies the cases once more."
        "Publish parts with --shard I/N below a prefix each, or leave large files out."
        ""
    LlmJudgeWithoutModel "llm-judge-without-model" Warning true
        "An LLM judge has no model."
        "It will end in an error when a package is verified."
        "Set models.judge, the judge's own model, or --judge-model; or drop LLM judges with --no-llm-judges."
        "judges: [{name: q, prompt: …}]"
    LoopbackEndpoint "loopback-endpoint" Warning true
        "The S3 endpoint for pods is this machine."
        "In a pod, localhost and 127.0.0.1 are the pod itself."
        "Write the URL that the cluster knows the server by."
        "AWS_S3_ENDPOINT: http://127.0.0.1:9000"
    MissingKey "missing-key" Error false
        "A key that is needed is missing."
        "There is no sensible default for it."
        "Add the key."
        "files: [{dest: a.md}]"
    ModelUrl "model-url" Error false
        "A job has no URL of a model, or one that is none."
        "EvalHub refuses the job (model_url_required), unless all its benchmarks work on recorded results."
        "Write the whole URL of the model's API."
        "model: {name: m, url: vertex-ai}"
    MutuallyExclusive "mutually-exclusive" Error false
        "Two fields can not be used together."
        "They contradict each other."
        "Keep one of them."
        "execution: {skill: a, prompt: b}"
    NameCaseCollision "name-case-collision" Warning true
        "Two names are the same on some file systems."
        "Where letter case or Unicode form does not count, one file replaces the other."
        "Rename one of them."
        "README.md and Readme.md"
    NestedObject "nested-object" Error false
        "A file lies in a directory of its case, and agent-eval's downloader can not restore it."
        "That downloader makes the directory of the case and nothing below it, and ends with FileNotFoundError."
        "Use --layout evalhub-testdata, or keep all files of a case at its top."
        "cases/case-001/data/table.csv with --layout agent-eval-s3"
    NoCases "no-cases" Error false
        "The dataset has no cases."
        "A case is a directory below dataset.path; names that start with a dot and __pycache__ are none."
        "Correct dataset.path, or add a case."
        ""
    NoVerdict "no-verdict" Warning true
        "Nothing judges the cases."
        "Packages without judges report the reward 0 and say that nothing was judged."
        "Add a judge, for example a check."
        "judges: []"
    NonUtf8Name "non-utf8-name" Error false
        "A file name is not UTF-8."
        "Packages, stores and manifests need names that are text."
        "Rename the file."
        ""
    NotAMapping "not-a-mapping" Error false
        "An input that must be a mapping is something else."
        "Placeholders name fields of the input."
        "Write the input as a mapping with named fields."
        "input.yaml: \"- a\""
    ObjectOutsideCase "object-outside-case" Error false
        "An object would lie beside the cases."
        "The stock adapters take every directory for a case and lose other files."
        "Move it into a case, or leave it out."
        "cases/notes.md"
    OddObjectName "odd-object-name" Error false
        "A file name has a backslash or a control character."
        "Such keys are changed or refused on their way through proxies, consoles and file systems."
        "Rename the file."
        ""
    OutputLeftBehind "output-left-behind" Warning true
        "Something in the output directory is not of this build and was left."
        "casepack removes only what it wrote itself and what is unchanged since."
        "Remove it if it is not needed."
        ""
    OutputNotOurs "output-not-ours" Error false
        "Something that casepack did not write, or that was changed since, is where an output belongs."
        "casepack deletes and overwrites only what it wrote itself and what is unchanged since."
        "Move it away, or build into another directory."
        ""
    PackageInvalid "package-invalid" Error false
        "Harbor would skip this package in silence."
        "Harbor runs the packages that it can load and says nothing about the rest."
        "Mend what the message names."
        ""
    ParentTraversal "parent-traversal" Error false
        "A path leads upwards."
        "`..` would lead out of the case, the dataset or the workspace."
        "Write the path without `..`."
        "files: [../secret.md]"
    PathCollision "path-collision" Error false
        "Two entries claim one path."
        "One would silently replace the other."
        "Give one of them another dest, or remove it."
        "files: [a.md, {dest: a.md, source: b.md}]"
    PathTooLong "path-too-long" Error false
        "A path is longer than packages can carry."
        "A path has at most 4,096 bytes, a component 255."
        "Shorten it."
        ""
    PlaceholderObject "placeholder-object" Error false
        "Below the prefix is a key that ends in a slash, or is no path."
        "Consoles make such objects for directories; agent-eval's downloader ends with IsADirectoryError."
        "Remove the object."
        "s3://bucket/triage/cases/case-001/"
    PluginDirOutside "plugin-dir-outside" Note false
        "A plugin directory lies outside of the project."
        "Shared files may come from there; it was named in the config, so it is allowed."
        "Nothing has to be done if it is meant."
        "runner: {plugin_dirs: [/opt/plugins]}"
    PluginDirRefused "plugin-dir-refused" Warning true
        "A plugin directory can not be used."
        "The file system root, a home directory or an ancestor of the project would let any file in; one that is missing or leads out through a link can not be read."
        "Name the plugin's own directory; to use a wide one, give it on the command line with --plugin-dir."
        "runner: {plugin_dirs: [/]}"
    PrefixEmpty "prefix-empty" Error false
        "Plain objects need a prefix of their own."
        "With an empty key EvalHub makes a pod without any files; and the record of what casepack wrote lies beside the prefix."
        "Add a prefix: s3://BUCKET/PREFIX."
        "s3://bucket"
    ProviderNotLiteral "provider-not-literal" Error false
        "A provider asks for secrets or volumes."
        "Providers of EvalHub have literal environment values only; everything else is dropped in silence."
        "Write the value itself, or bring the file in the image."
        "env: [{name: KEY, valueFrom: …}]"
    RecordDamaged "record-damaged" Warning true
        "The record of an output directory can not be used."
        "It says which outputs casepack wrote; a damaged or foreign one is not trusted."
        "Nothing is lost: outputs that are up to date are recognised by their content; replace others with --force."
        ""
    RepoModeNotPackaged "repo-mode-not-packaged" Error false
        "workspace_mode: repo can not be packaged."
        "The agent would work in the project itself, which a package does not hold."
        "Use it with the local harness only, or list the files in workspace.files and drop workspace_mode."
        "runner: {workspace_mode: repo}"
    ReservedDest "reserved-dest" Warning true
        "A shared dest has a reserved name."
        "It belongs to the case itself or to a generated file and would replace it."
        "Choose another dest."
        "files: [{dest: answers.yaml, source: a.yaml}]"
    ReservedJudgeName "reserved-judge-name" Error false
        "A judge is called \"reward\"."
        "The name of the total: in the reward file one would replace the other."
        "Rename the judge."
        "judges: [{name: reward, check: …}]"
    ResultsConflict "results-conflict" Error false
        "Two runs have results of one case that differ."
        "Which one is right can not be known; the worse one is taken, so that nothing looks better than it is."
        "Name each shard once, and only one run of it."
        "casepack report runs/1 runs/1-again -o report"
    ResultsMissing "results-missing" Error false
        "No shard has a result of a case that the dataset has."
        "A rate over the other cases would look like one over all of them."
        "Name the runs of all shards, or run the shard that is missing."
        "casepack report runs/1-of-3 runs/2-of-3 -o report"
    ResultsOfOtherRun "results-of-other-run" Error false
        "Runs that are to be merged are no parts of one run."
        "Another dataset, agent, model or bound makes other numbers; a mean over both means nothing."
        "Merge only the shards of one run, and compare others with --baseline."
        "casepack report runs/oracle runs/nop -o report"
    Root "root" Error false
        "A path that must name something below a directory names the directory itself."
        "The whole directory is never what is meant."
        "Name a file or a directory below it."
        "outputs: [{path: .}]"
    RunNotIsolated "run-not-isolated" Warning true
        "The agent runs without a sandbox."
        "bubblewrap is missing or does not work here; the agent can read this machine, the dataset and the answer keys."
        "Install bubblewrap, or run where it works."
        ""
    SchemaUndocumentedField "schema-undocumented-field" Note false
        "A field that is used is not mentioned in dataset.schema."
        "The schema is what people and agents write new cases from."
        "Describe the field in dataset.schema."
        "arguments: \"{priority}\""
    ScoreRangeMissing "score-range-missing" Warning true
        "A numeric LLM judge has no score_range."
        "Its values are taken as 1 to 5."
        "Declare score_range."
        "feedback_type: int"
    SecretIncomplete "secret-incomplete" Error false
        "A Secret for test data lacks one of its four keys."
        "EvalHub's downloader needs AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_DEFAULT_REGION and AWS_S3_ENDPOINT, on AWS too."
        "Add the key; on AWS the endpoint is https://s3.REGION.amazonaws.com."
        ""
    SecretLiteral "secret-literal" Warning true
        "An environment value looks like a secret."
        "It would be written into every package in clear."
        "Write $NAME: it is passed on as a reference and resolved where the package runs."
        "env: {API_KEY: sk-…}"
    SharedDestInSource "shared-dest-in-source" Warning true
        "The dest of a shared entry lies inside its own source."
        "The copy would contain itself, without end."
        "Choose a dest outside of the source."
        ""
    SharedKeyPrefix "shared-key-prefix" Warning true
        "Another key starts like this prefix."
        "EvalHub's downloader takes the key as the beginning of a text: `data/v1` fetches `data/v10/…` as well."
        "End the key in job requests with a slash, or use {digest} in the prefix."
        "s3://bucket/data/v1 and s3://bucket/data/v10"
    SharedSourceMissing "shared-source-missing" Warning true
        "The source of a shared entry is missing."
        "No case gets the file."
        "Correct the path; it is relative to the project root."
        "{dest: a.md, source: docs/a.md}"
    SharedSourceOutsideRoots "shared-source-outside-roots" Warning true
        "The source of a shared entry leads out of the project."
        "Files of the machine must not get into packages; allowed are the project, the dataset directory and plugin directories."
        "Move the file into the project, or add its directory to runner.plugin_dirs."
        "{dest: hosts, source: /etc/hosts}"
    SkillNotStaged "skill-not-staged" Note false
        "The skill under test is not part of the package."
        "A skill named plugin:skill comes with the image or with the agent's plugin option; another one is staged from skills/ or .claude/skills/."
        "Nothing has to be done if the image has it."
        "execution: {skill: \"ci:fix\"}"
    SlowDownload "slow-download" Warning true
        "EvalHub's downloader will hardly get all objects within its ten minutes."
        "It gets one object after another, about 30 ms each, and no field of a job can raise its deadline."
        "Publish parts below a prefix each, one benchmark for each, or use casepack as EvalHub's init image."
        ""
    SpecialFile "special-file" Warning true
        "A fifo, socket or device was left behind."
        "It has no content that could be carried; opening it could hang."
        "Remove it from the case."
        ""
    StepsReferenceInPackage "steps-reference-in-package" Error false
        "A template uses the results of earlier steps."
        "They exist only while a case runs; a package is written before."
        "Tell the agent where the earlier step leaves its results; the steps of a case share one workspace."
        "prompt: \"{{ steps.plan.output }}\""
    StoreIgnoresConditions "store-ignores-conditions" Warning true
        "The store ignores conditional writes."
        "A tag is moved only if nobody else has moved it meanwhile. A store that ignores the condition lets the last of two publishers win, and does not tell the other."
        "Let one publisher at a time move a tag, or use one tag for each."
        ""
    StrictUser "strict-user" Error false
        "The strict profile needs a user that is not root."
        "harbor lint reports agents that run as root."
        "Give --agent-user NAME, a user of the image that may write the workdir."
        "--profile strict"
    SymlinkDangling "symlink-dangling" Warning true
        "A link leads nowhere."
        "There is nothing to copy."
        "Remove or mend the link."
        ""
    SymlinkDirectory "symlink-directory" Warning true
        "A link to a directory is not followed."
        "What it leads to can be anything, at any time."
        "List the directory itself, or use a shared {dest, source}."
        ""
    SymlinkNested "symlink-nested" Warning true
        "A link inside a copied directory was skipped."
        "Only listed links to files are followed."
        "List the link itself in workspace.files, or use a shared {dest, source}."
        ""
    SymlinkOutsideRoots "symlink-outside-roots" Warning true
        "A link leads out of the places that may be read."
        "Files of the machine or of sibling cases must not get into a case."
        "Copy the file into the case, or use a shared {dest, source}."
        ""
    TemplateError "template-error" Error false
        "A template can not be rendered."
        "The instruction would be wrong."
        "Mend the template at the place that is shown."
        "arguments: \"{{ input.x | nope }}\""
    TemplateMissingField "template-missing-field" Error false
        "A template uses a field that the input does not have."
        "The agent would get an instruction with a hole in it."
        "Add the field to the input, or make it optional: {field?} or {{ input.get('field', '') }}."
        "arguments: \"{ticket}\""
    ThresholdUnknownJudge "threshold-unknown-judge" Warning true
        "A threshold names a judge that does not exist."
        "It is never checked."
        "Correct the name."
        "thresholds: {qualty: {min_mean: 3}}"
    TooLarge "too-large" Error false
        "Something is larger than the limits of casepack."
        "The limits keep hostile files from using up memory and disk."
        "Split or shrink it."
        ""
    UnknownKey "unknown-key" Warning true
        "A key is not known here."
        "Programs that read this file ignore it, so what it says is not done."
        "Correct the name, or remove it."
        "dataset: {pth: cases}"
    UnpackagedFile "unpackaged-file" Note false
        "A file of the case stays behind."
        "It is nothing that a package carries (repository data, caches, editor files)."
        "Nothing has to be done."
        ""
    UnresolvedExternalPlaceholder "unresolved-external-placeholder" Error false
        "An input still holds a TODO_<SYSTEM>_<FIELD> placeholder."
        "The skill would ask the external system for nothing and fail silently."
        "Replace it with a real value."
        "project_key: TODO_JIRA_PROJECT_KEY"
    Unsupported "unsupported" Error false
        "Two settings do not work together, or a setting does not work with this agent."
        "The programs that run it refuse it."
        "Change one of them."
        "runner: {type: codex} with inputs.tools"
    WeightUnknownJudge "weight-unknown-judge" Warning true
        "reward.weights or reward.raw names a judge that does not exist."
        "It counts for nothing; when no weight is left the reward is 0."
        "Correct the name."
        "reward: {weights: {qualty: 1}}"
    WorkspaceFileMissing "workspace-file-missing" Warning true
        "A listed file is not in the case."
        "The skill will not find it."
        "Add the file to each case, or remove the entry; if a before_each hook stages it, only runs of the harness itself have it."
        "files: [strategy.md]"
    WrongType "wrong-type" Error false
        "A value has the wrong type."
        "The programs that read this field refuse it."
        "Write it as the message says."
        "outputs: results/"
    YamlLimit "yaml-limit" Error false
        "A YAML file is beyond the limits."
        "Depth, number of values and expanded aliases are limited, so that hostile files can not use up memory."
        "Split or flatten it."
        ""
    YamlMultiDocument "yaml-multi-document" Error false
        "A YAML file has several documents."
        "The programs that read it take exactly one."
        "Remove the `---` line and what does not belong."
        ""
    YamlSyntax "yaml-syntax" Error false
        "A file is not valid YAML."
        ""
        "Mend the file at the place that is shown."
        "a: [1"
    YamlTag "yaml-tag" Error false
        "A YAML tag is not supported."
        "Tags can make programs build objects; readers refuse them."
        "Remove the tag."
        "a: !!python/object:x {}"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn are_sorted_and_found_by_name() {
        assert!(
            Rule::ALL
                .windows(2)
                .all(|pair| pair[0].name() < pair[1].name())
        );
        for &rule in Rule::ALL {
            assert_eq!(Rule::from_name(rule.name()), Some(rule));
            assert!(
                rule.info().summary.ends_with('.') && rule.info().fix.ends_with('.'),
                "{rule:?}"
            );
        }
    }
}
